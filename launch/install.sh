#!/usr/bin/env bash
# Installs openrlhf-stare and the stack it runs on into .venv: launch/install.sh [cpu|gpu] [--dry-run]
# The default is gpu where nvidia-smi lists one, unless OPENRLHF_STARE_CPU=1 is set. --dry-run only resolves the
# versions. Safe to run again: a finished installation of the same versions is left as it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TORCH=2.13.0 VLLM=0.29.0 FLASH_ATTN=2.8.3

say() { printf 'install: %s\n' "$*"; }
stop() {
    printf 'install: %s\n' "$*" >&2
    exit 2
}
has_gpu() { [[ ${OPENRLHF_STARE_CPU:-0} != 1 ]] && nvidia-smi -L >/dev/null 2>&1; }

kind= dry_run=()
for argument in "$@"; do
    case $argument in
    cpu | gpu) kind=$argument ;;
    --dry-run) dry_run=(--dry-run) ;;
    *) stop "'$argument' is neither cpu nor gpu nor --dry-run" ;;
    esac
done
kind=${kind:-$(has_gpu && echo gpu || echo cpu)}

stamp=.venv/.installed
wanted="$kind $(cat pyproject.toml launch/cpu-overrides.txt launch/install.sh | sha256sum)"
if ((! ${#dry_run[@]})) && [[ -f $stamp ]]; then
    [[ $(<"$stamp") != "$wanted" ]] || exit 0
    # uv would leave the torch that is there, which is the other stack's.
    read -r has _ <"$stamp" || true
    [[ $has == "$kind" ]] || stop ".venv has the $has stack: delete that folder, and run this again for the $kind stack"
fi

python=${PYTHON:-}
for candidate in python3.11 python3; do
    [[ -n $python ]] || ! command -v "$candidate" >/dev/null || python=$candidate
done
[[ -n $python ]] || stop "no python3 found; set PYTHON to a Python 3.11"
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    stop "$python is $("$python" --version); set PYTHON to a Python 3.11"

say "the $kind stack into .venv, with $("$python" --version)"
[[ -x .venv/bin/python ]] || "$python" -m venv --without-pip .venv
uv=$(command -v uv) || uv=.venv/bin/uv
# With the pip of that Python, since to set one up in .venv takes longer than uv itself.
if [[ ! -x $uv ]] && ! "$python" -m pip --python .venv/bin/python install --quiet --disable-pip-version-check uv; then
    say "with $python's own pip that did not work (above); trying with one in .venv"
    .venv/bin/python -m ensurepip >/dev/null
    .venv/bin/python -m pip install --quiet --disable-pip-version-check uv
fi

# uv does not read pip's variables. Without an index of one's own, it knows where torch's CPU builds are.
torch=()
if [[ $kind == cpu && -z ${PIP_FIND_LINKS:-}${PIP_EXTRA_INDEX_URL:-}${UV_FIND_LINKS:-}${UV_EXTRA_INDEX_URL:-}${UV_INDEX:-} ]]; then
    torch=(--torch-backend cpu)
fi
export UV_FIND_LINKS=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}} UV_EXTRA_INDEX_URL=${UV_EXTRA_INDEX_URL:-${PIP_EXTRA_INDEX_URL:-}}
# An index beside PyPI may lack the version that is wanted: take the best of both, as pip does.
export UV_INDEX_STRATEGY=${UV_INDEX_STRATEGY:-unsafe-best-match}
install() { "$uv" pip install --quiet --python .venv/bin/python "${torch[@]}" "$@"; }

if ((${#dry_run[@]})); then
    # flash-attn tells what it needs only where torch is installed.
    without=$(mktemp)
    trap 'rm "$without"' EXIT
    if [[ $kind == cpu ]]; then cat launch/cpu-overrides.txt; else echo 'flash-attn ; sys_platform == "never"'; fi >"$without"
    exec "$uv" pip compile --quiet --no-header --no-annotate --python-version 3.11 --override "$without" "${torch[@]}" \
        --extra "$kind" --extra math --extra report --extra test pyproject.toml
fi

if [[ $kind == gpu ]]; then
    say "vLLM with the torch that it is compiled for"
    install "torch==$TORCH" "vllm==$VLLM" packaging psutil wheel ninja "setuptools==77.0.3"
    cuda=$(.venv/bin/python -c 'import torch; print(torch.version.cuda)')
    .venv/bin/python -c 'import torch; torch.zeros(1, device="cuda")' ||
        stop "torch $TORCH for CUDA $cuda cannot use this GPU (above): docs/cluster.md says what to do about another CUDA"
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
        install --no-build-isolation "flash-attn==$FLASH_ATTN" # isolation would hide torch from it
    fi
    say "OpenRLHF"
    install "torch==$TORCH" pip -e ".[gpu,math,report,test]"
else
    install --override launch/cpu-overrides.txt pip -e ".[cpu,math,report,test]"
    # Its own file says what it was built for; to import torch would take seconds here.
    .venv/bin/python -c 'import runpy, sys; of = runpy.run_path(sys.argv[1]); sys.exit(bool(of["cuda"] or of["hip"]))' \
        .venv/lib/python3.11/site-packages/torch/version.py ||
        stop "uv took a GPU build of torch: set UV_INDEX to the index of torch's CPU builds that pytorch.org names," \
            "and run this again"
    say "byte code of what a job imports, which each of its processes would otherwise compile for itself"
    .venv/bin/python launch/byte_code.py
fi
printf '%s' "$wanted" >"$stamp"
say "done in $SECONDS s"
