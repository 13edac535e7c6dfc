"""The modules of flash_attn that OpenRLHF imports, made of what is in padding.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def stand_ins() -> Iterator[None]:
    """openrlhf.models.ring_attn_utils imports five names from flash_attn, which is not installed here.

    They stand in while that module is imported and no longer: transformers, vLLM and OpenRLHF's log-probs look for
    flash_attn too and must not find it.
    """
    from openrlhf_stare.without_flash_attn import padding

    places = ("flash_attn", "flash_attn.bert_padding", "flash_attn.utils", "flash_attn.utils.distributed")
    names: dict[str, Any] = {name: ModuleType(name) for name in places}
    for name in ("index_first_axis", "pad_input", "rearrange", "unpad_input"):
        setattr(names["flash_attn.bert_padding"], name, getattr(padding, name))
    names["flash_attn.utils.distributed"].all_gather = padding.all_gather
    sys.modules.update(names)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
