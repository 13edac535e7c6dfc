#!/usr/bin/env bash
# Installs what is missing, then checks the style and runs all tests: launch/test.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash launch/install.sh
# Two programs of the system: the Python tool's sandbox, and the browser for the report. Without them tests fail.
missing=()
for package in bubblewrap:bwrap chromium:chromium; do
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
if (($#)); then
    exec .venv/bin/python -m pytest "$@"
fi
exec .venv/bin/python -m pytest --durations=15 tests/unit tests/distributed tests/pipeline
