#!/usr/bin/env bash
# Installs what is missing, then checks the style and runs all tests: launch/test.sh [gpu | pytest arguments]
# launch/test.sh gpu checks a GPU installation: it runs what needs GPUs, and nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ${1:-} == gpu ]]; then
    bash launch/install.sh gpu
    set -- tests/gpu
else
    bash launch/install.sh
fi
# The tests start their own Ray clusters and use models they make themselves.
export RAY_ADDRESS=local HF_HUB_OFFLINE=1
.venv/bin/ruff check .
.venv/bin/ruff format --check .
if (($#)); then
    exec .venv/bin/python -m pytest "$@"
fi
exec .venv/bin/python -m pytest --durations=15 tests/unit tests/distributed tests/pipeline
