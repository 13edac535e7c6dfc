#!/usr/bin/env bash
# Submits a training job to a running Ray cluster: launch/cluster/submit.sh [flags of train_ray]
# The job brings this checkout's package and launch/ along, for nodes that have OpenRLHF but not openrlhf-stare.
#   RAY_JOBS    where the cluster takes jobs (default http://127.0.0.1:8265, the dashboard of the head node)
#   JOB_ENV     JSON of environment variables for all processes of the job; default {}
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

carried=$(mktemp -d)
trap 'rm -rf "$carried"' EXIT
# Installed, not only copied: vLLM finds our plugin by the metadata that lies beside an installed package.
mkdir "$carried/source" "$carried/job"
cp -r openrlhf_stare pyproject.toml README.md LICENSE "$carried/source"
python -m pip install --quiet --no-deps --no-build-isolation --target "$carried/job" "$carried/source"
cp -r launch "$carried/job"
# In a file, because `ray job submit` would not quote the arguments for the shell that runs them.
printf '%q ' python -m openrlhf_stare.train_ray "$@" >"$carried/job/job.sh"

runtime_env=$(python -c '
import json, os, sys
print(json.dumps({"working_dir": sys.argv[1], "env_vars": json.loads(os.environ.get("JOB_ENV") or "{}")}))
' "$carried/job")
ray job submit --address "${RAY_JOBS:-http://127.0.0.1:8265}" --runtime-env-json "$runtime_env" -- bash job.sh
