"""What a model does to its head's products before they are its logits, as its configuration says."""

from __future__ import annotations

# What the models of transformers 5 multiply or divide by, or cap with, and the value at which that does nothing.
NEUTRAL = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}
UNKNOWN = ("lm_head_multiplier", "output_multiplier")  # what others call theirs


def softcap_and_scale(config) -> tuple[float | None, float]:
    """The soft cap (Gemma; None without) and the scale (Cohere, Granite; 1 without) of a model's logits.

    Raises:
        ValueError: the model has a factor whose use is not known. The message has no flag in it.
    """
    family, scale = config.model_type, 1.0
    for name in ("logit_scale", "logits_scaling", *UNKNOWN):
        factor = getattr(config, name, None)
        if factor in (None, 1):
            continue
        if name == "logit_scale" and family.startswith("cohere"):
            scale = factor
        elif name == "logits_scaling" and family.startswith("granite"):  # others multiply by it
            scale = 1 / factor
        else:
            raise ValueError(f"{family} has {name} {factor}, whose use in its logits is not known")
    return getattr(config, "final_logit_softcapping", None), scale
