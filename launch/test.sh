#!/usr/bin/env bash
# Installs what is missing, then checks style and types and runs all tests:
# launch/test.sh [quick | gpu [pytest options] | pytest arguments]
# quick runs the unit tests and one real job, for whoever changed a line; gpu what needs GPUs, and nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/run_job.sh

if [[ ${1:-} == quick ]] && (($# > 1)); then
    echo "test: quick takes no arguments, here ${*:2}: leave them out, or leave out quick and name the tests" >&2
    exit 2
fi
if [[ ${1:-} == gpu ]]; then
    run_job bash launch/install.sh gpu
    set -- tests/gpu "${@:2}"
else
    run_job bash launch/install.sh
fi
# Programs of the system: the Python tool's sandbox, the browser for the report, two nodes' networks. Without them tests
# fail or are left out.
missing=()
for package in bubblewrap:bwrap chromium:chromium iproute2:ip; do
    command -v "${package#*:}" >/dev/null || missing+=("${package%:*}")
done
if ((${#missing[@]} && EUID == 0)) && command -v apt-get >/dev/null; then
    echo "test: installing ${missing[*]} with apt-get"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
elif ((${#missing[@]})); then
    echo "test: ${missing[*]} not found; the tests that need them will fail" >&2
fi
# The tests start their own Ray clusters and use models they make themselves.
export RAY_ADDRESS=local HF_HUB_OFFLINE=1
.venv/bin/ruff check .
.venv/bin/ruff format --check .
run_job .venv/bin/mypy
if (($#)) && [[ $1 != quick ]]; then
    exec .venv/bin/python -m pytest "$@"
fi
# A job of the pipeline keeps two cores busy by itself.
run_job .venv/bin/python -m pytest --durations=5 --numprocesses=2 --dist=loadfile tests/unit
if [[ ${1:-} == quick ]]; then
    exec .venv/bin/python -m pytest tests/pipeline/test_job_matrix.py -k colocated
fi
exec .venv/bin/python -m pytest --durations=15 tests/distributed tests/pipeline
