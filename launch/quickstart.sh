#!/usr/bin/env bash
# Installs what is missing, then trains a small language model with STARE: launch/quickstart.sh [flags of train_ray]
# launch/quickstart.sh --help says more. The same without a clone is `openrlhf-stare quickstart`.
# STEPS=50 launch/quickstart.sh trains for 50 steps. OPENRLHF_STARE_CPU=1 trains on the CPU, whatever GPUs there are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/run_job.sh
run_job bash launch/install.sh
exec .venv/bin/openrlhf-stare quickstart "$@"
