#!/usr/bin/env bash
# Installs openrlhf-stare and the stack it runs on into .venv: launch/install.sh [cpu|gpu] [--dry-run]
# The default is gpu where nvidia-smi lists one, unless OPENRLHF_STARE_CPU=1 is set. --dry-run only resolves the
# versions. Safe to run again: a finished installation of the same versions is left as it is.
# For gpu: FLASH_ATTN=1 compiles flash-attn, which takes a CUDA toolkit and half an hour; FLASH_ATTN_WHEEL=FILE installs
# one that is compiled already. Without either a job has torch's attention in its place.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TORCH=2.13.0 CUDA=13.0 VLLM=0.29.0 FLASH_ATTN_VERSION=2.8.3.post2

say() { printf 'install: %s\n' "$*"; }
stop() {
    printf 'install: %s\n' "$*" >&2
    exit 2
}
# CUDA_VISIBLE_DEVICES hides all GPUs from a job where it is empty or begins with a negative number.
has_gpu() { [[ ${CUDA_VISIBLE_DEVICES-all} != @(""|-*) ]] && nvidia-smi -L >/dev/null 2>&1; }

kind= dry_run=()
for argument in "$@"; do
    case $argument in
    cpu | gpu) kind=$argument ;;
    --dry-run) dry_run=(--dry-run) ;;
    *) stop "'$argument' is neither cpu nor gpu nor --dry-run" ;;
    esac
done
[[ ${OPENRLHF_STARE_CPU:-0} == [01] ]] ||
    stop "OPENRLHF_STARE_CPU=$OPENRLHF_STARE_CPU is neither 1 nor 0: set it to one of them, or unset it"
kind=${kind:-$([[ ${OPENRLHF_STARE_CPU:-0} != 1 ]] && has_gpu && echo gpu || echo cpu)}

flash_attn=none
if [[ $kind == gpu && -n ${FLASH_ATTN_WHEEL:-} ]]; then
    [[ -f $FLASH_ATTN_WHEEL && $FLASH_ATTN_WHEEL == *.whl ]] || stop "FLASH_ATTN_WHEEL=$FLASH_ATTN_WHEEL is no wheel"
    flash_attn=$FLASH_ATTN_WHEEL
elif [[ $kind == gpu && ${FLASH_ATTN:-0} == 1 ]]; then
    flash_attn=$FLASH_ATTN_VERSION
fi

# A .venv keeps the Python that it was made with.
version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
if [[ -n ${PYTHON:-} ]] && wanted=$(version "$PYTHON") && has=$(version .venv/bin/python) && [[ $has != @(""|"$wanted") ]]
then stop ".venv has Python $has, and PYTHON is $wanted: delete .venv, or use a clone of its own for each"; fi

source launch/run_job.sh # for what takes long, which is to end with this script

# One at a time: of two first starts each would clear the other's .venv.
exec 8<launch/install.sh
status=0
flock --nonblock 8 || status=$?
((status != 1)) || { say "another process installs here; this one waits for it"; run_job flock 8; }

stamp=.venv/.installed
files=$(cat pyproject.toml openrlhf_stare/cpu/overrides.txt launch/install.sh | sha256sum)
if ((! ${#dry_run[@]})) && [[ -f $stamp ]]; then
    { read -r has has_files has_flash_attn; read -r has_folder; } <"$stamp" || true
    [[ . -ef ${has_folder:-.} ]] || # one folder may have several names
        stop ".venv was made in $has_folder, which its programs still use: delete .venv here, and run this again"
    # flash-attn that is there stays, whether it is asked for again or not. Without its Python nothing of it works.
    [[ $has != "$kind" || $has_files != "${files%% *}" || $flash_attn != @(none|"$has_flash_attn") ||
        -z $(version .venv/bin/python) ]] || exit 0
    # uv would leave the torch that is there, which is the other stack's.
    [[ $has == "$kind" ]] || stop ".venv has the $has stack: delete .venv, and run this again for the $kind stack"
fi

source launch/python.sh
python=$(first_python)
[[ -n $python ]] || stop "no Python 3.10, 3.11 or 3.12 on the PATH; set PYTHON to one"
fits "$python" || stop "$python is $("$python" --version 2>&1 || true); set PYTHON to a Python 3.10, 3.11 or 3.12"

# What can stop a job on these GPUs, before gigabytes are fetched for it.
look_at_the_gpus() {
    local instead="OPENRLHF_STARE_CPU=1 trains on the CPU" driver capability
    driver=$(nvidia-smi | sed -n 's/.*CUDA Version: *\([0-9]*\.[0-9]*\).*/\1/p' | head -n 1)
    if [[ -n $driver ]] && ((${driver%%.*} < ${CUDA%%.*})); then
        stop "the GPU's driver is for CUDA $driver, and torch $TORCH for CUDA $CUDA: docs/cluster.md says what to do" \
            "about another CUDA, and $instead"
    fi
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sort -n | head -n 1)
    if [[ $capability =~ ^[0-9]+\.[0-9]+$ ]] && ((${capability%%.*} < 8)); then
        stop "a GPU here has compute capability $capability, and vLLM's bfloat16 needs 8.0: $instead"
    fi
}

# Triton, with which vLLM and torch compile, calls a C compiler that wants Python's header.
look_for_a_compiler() {
    local header
    command -v "${CC:-gcc}" >/dev/null || command -v cc >/dev/null ||
        stop "no C compiler found, which Triton needs on a GPU: install gcc and g++"
    header=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
    [[ -f $header ]] ||
        stop "$header is not there, which Triton needs on a GPU: install the headers of $python (python3-dev)," \
            "or set PYTHON to one that has them"
}

# flash-attn builds with the compiler of torch's CUDA only, which is looked for as torch does.
look_for_nvcc() {
    local home=${CUDA_HOME:-${CUDA_PATH:-}} nvcc has
    if [[ -z $home ]]; then
        home=/usr/local/cuda
        if nvcc=$(command -v nvcc); then home=$(dirname "$(dirname "$nvcc")"); fi
    fi
    nvcc=$home/bin/nvcc
    has=$("$nvcc" -V 2>/dev/null | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p') || true
    command -v "${CXX:-g++}" >/dev/null || stop "no C++ compiler found, which flash-attn needs: install g++"
    [[ ${has%%.*} == "${CUDA%%.*}" ]] ||
        stop "FLASH_ATTN=1 needs the CUDA $CUDA toolkit, and $nvcc is ${has:-not there}: install it and set" \
            "CUDA_HOME to it, or leave FLASH_ATTN out"
}

if [[ $kind == gpu ]] && ((! ${#dry_run[@]})); then
    if has_gpu; then look_at_the_gpus; else say "nvidia-smi lists no GPU here; the GPU stack is installed all the same"; fi
    look_for_a_compiler
    [[ $flash_attn != "$FLASH_ATTN_VERSION" ]] || look_for_nvcc
fi

say "the $kind stack into .venv, with $("$python" --version)"
anew=()
((${#dry_run[@]})) || { rm -f "$stamp"; anew=(--clear); } # until all is done
[[ -n $(version .venv/bin/python) ]] || "$python" -m venv "${anew[@]}" --without-pip .venv
uv=$(command -v uv) || uv=.venv/bin/uv
# With the pip of that Python, since to set one up in .venv takes longer than uv itself.
if [[ ! -x $uv ]] && ! run_job "$python" -m pip --python .venv/bin/python install --quiet --disable-pip-version-check uv; then
    say "with $python's own pip that did not work (above); trying with one in .venv"
    run_job .venv/bin/python -m ensurepip >/dev/null
    run_job .venv/bin/python -m pip install --quiet --disable-pip-version-check uv
fi

# uv does not read pip's variables. Without an index of one's own, it knows where torch's CPU builds are.
torch=()
if [[ $kind == cpu && -z ${PIP_FIND_LINKS:-}${PIP_EXTRA_INDEX_URL:-}${UV_FIND_LINKS:-}${UV_EXTRA_INDEX_URL:-}${UV_INDEX:-} ]]; then
    torch=(--torch-backend cpu)
fi
links=${PIP_FIND_LINKS:-} # several are separated by blanks for pip and by commas for uv
export UV_FIND_LINKS=${UV_FIND_LINKS:-${links// /,}} UV_EXTRA_INDEX_URL=${UV_EXTRA_INDEX_URL:-${PIP_EXTRA_INDEX_URL:-}}
# An index beside PyPI may lack the version that is wanted: take the best of both, as pip does.
export UV_INDEX_STRATEGY=${UV_INDEX_STRATEGY:-unsafe-best-match}
install() { run_job "$uv" pip install --quiet --python .venv/bin/python "${torch[@]}" "$@"; }

# As its own file says: to import torch would take seconds.
cuda_of_torch() {
    .venv/bin/python -c 'import pathlib, runpy, sysconfig
of = runpy.run_path(str(pathlib.Path(sysconfig.get_path("purelib"), "torch", "version.py")))
print(of["cuda"] or of["hip"] or "the CPU")'
}

# flash-attn tells what it needs only where torch is installed, and is installed by itself.
overrides=openrlhf_stare/cpu/overrides.txt
[[ $kind == cpu ]] || overrides=launch/gpu-overrides.txt
if ((${#dry_run[@]})); then
    exec "$uv" pip compile --quiet --no-header --no-annotate --python-version "$(version "$python")" \
        --override "$overrides" "${torch[@]}" --extra "$kind" --extra math --extra report --extra test pyproject.toml
fi

if [[ $kind == gpu ]]; then
    say "OpenRLHF and vLLM, with the torch that it is compiled for"
    install --override "$overrides" "torch==$TORCH" "vllm==$VLLM" ninja pip -e ".[gpu,math,report,test]"
    [[ $(cuda_of_torch) == "$CUDA" ]] ||
        stop "uv took a torch $TORCH for '$(cuda_of_torch)' instead of CUDA $CUDA, from PIP_FIND_LINKS or another index" \
            "than PyPI: unset that, and run this again"
    ! has_gpu || .venv/bin/python -W ignore -c 'import torch; torch.zeros(1, device="cuda")' ||
        stop "torch $TORCH for CUDA $CUDA cannot use this GPU (above): docs/cluster.md says what to do about another CUDA"
    if [[ $flash_attn == "$FLASH_ATTN_VERSION" ]]; then
        # Only for the GPUs at hand (8.9 runs what is built for 80); for all of them it takes hours.
        archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sed 's/\..*/0/' | sort -un |
            paste -sd ';') || true
        export FLASH_ATTN_CUDA_ARCHS=${FLASH_ATTN_CUDA_ARCHS:-${archs:-80;90}}
        say "flash-attn $flash_attn for $FLASH_ATTN_CUDA_ARCHS (half an hour or more; MAX_JOBS limits its memory)"
        install packaging psutil wheel "setuptools==77.0.3"
        # isolation would hide torch from it
        PATH=$PWD/.venv/bin:$PATH install --no-deps --no-build-isolation "flash-attn==$flash_attn"
    elif [[ $flash_attn != none ]]; then
        say "flash-attn from $flash_attn"
        install --no-deps "$flash_attn"
        .venv/bin/python -W ignore -c 'import flash_attn' ||
            stop "flash-attn from $flash_attn cannot be imported (above): it has to be built for torch $TORCH and" \
                "$(.venv/bin/python --version)"
    elif ! .venv/bin/python -W ignore -c 'import flash_attn' 2>/dev/null; then
        say "without flash-attn: a job has torch's attention instead, which is slower on long sequences; to add it," \
            "run FLASH_ATTN=1 bash launch/install.sh gpu, with a CUDA ${CUDA%%.*} toolkit and half an hour or more"
    fi
else
    install --override "$overrides" pip -e ".[cpu,math,report,test]"
    [[ $(cuda_of_torch) == "the CPU" ]] ||
        stop "uv took a GPU build of torch: set UV_INDEX to the index of torch's CPU builds that pytorch.org names," \
            "and run this again"
fi
say "byte code of what a job imports, which each of its processes would otherwise compile for itself"
run_job .venv/bin/python launch/byte_code.py
printf '%s %s %s\n%s\n' "$kind" "${files%% *}" "$flash_attn" "$(pwd -P)" >"$stamp"
say "done in $SECONDS s"
