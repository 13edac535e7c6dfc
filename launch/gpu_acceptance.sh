#!/usr/bin/env bash
# What only a GPU can show, as one table for docs/cost.md: launch/gpu_acceptance.sh
# Ten minutes on one GPU, a few more for what two and three allow. The table, with the machine's name, and all logs are
# in a new folder under runs/gpu_acceptance. Ends with status 1 if something failed; the rest is tried all the same.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source launch/addends/job.sh

# Of a machine that is shared, those that are yours. Without a GPU nvidia-smi prints a sentence in place of numbers.
ids=${CUDA_VISIBLE_DEVICES-$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | grep -E '^[0-9]+$' |
    paste -sd ,)} || true
[[ $ids != -* ]] || ids=
IFS=, read -ra ids <<<"$ids"
gpus=${#ids[@]}
((gpus > 0)) || { say "nvidia-smi lists no GPU here, or CUDA_VISIBLE_DEVICES hides all" >&2; exit 2; }
run_job bash launch/install.sh gpu

logs=$PWD/runs/gpu_acceptance/$(date +%Y%m%d-%H%M%S)
mkdir -p "$logs"
report=$logs/table.md
failures=0

# attempt NAME COMMAND…: runs it with its output in a log, and notes how it went.
attempt() {
    local name=$1 start=$SECONDS
    shift
    say "$name"
    if run_job "$@" &>"$logs/$name.log"; then
        echo "| $name | done in $((SECONDS - start)) s |" >>"$report"
    else
        echo "| $name | **failed**: $(tail -n 1 "$logs/$name.log" | tr '|' '/') |" >>"$report"
        failures=$((failures + 1))
    fi
}

# quickstart NAME GPUS [FLAGS]: the quickstart on so many of the GPUs, with the most memory in use on any of them.
watcher=
trap '[[ -z $watcher ]] || kill "$watcher"' EXIT
quickstart() {
    local name=$1 visible run
    visible=$(IFS=, && echo "${ids[*]:0:$2}")
    shift 2
    nvidia-smi --id="$visible" --query-gpu=memory.used --format=csv,noheader,nounits --loop-ms=500 >"$logs/memory" &
    watcher=$!
    CUDA_VISIBLE_DEVICES=$visible STEPS=50 attempt "$name" bash launch/quickstart.sh "$@"
    # A job that fails at once is over before nvidia-smi has looked.
    for _ in {1..100}; do
        [[ ! -s $logs/memory ]] && kill -0 "$watcher" 2>/dev/null || break
        sleep 0.1
    done
    kill "$watcher" 2>/dev/null || true
    watcher=
    echo "| $name: most memory in use on a GPU | $(sort -n "$logs/memory" | tail -n 1) MiB |" >>"$report"
    run=$(sed -n 's/^quickstart: report: \(.*\)\/report.html$/\1/p' "$logs/$name.log")
    [[ -z $run ]] || "$python" - "$name" "$run" >>"$report" <<'END'
import statistics, sys
from pathlib import Path
from openrlhf_stare.report.reading import read_run

name, run = sys.argv[1], read_run(Path(sys.argv[2]), "run")
for figure in ("timing/step_total", "timing/generation", "timing/ppo_train", "entropy/seconds", "vllm_kl"):
    if figure in run.scalars:
        values = [abs(value) for value in run.scalars[figure].values.tolist()[5:]]
        print(f"| {name}: {figure}, median after 5 steps | {statistics.median(values):.3g} |")
END
}

benchmark() { attempt "$1" "$python" "tests/benchmarks/$2" "${@:3}"; }

{
    nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader | sort | uniq -c
    "$python" -W ignore - <<'END'
import importlib.metadata, importlib.util, platform, torch

names = [f"Python {platform.python_version()}", f"torch {torch.__version__} for CUDA {torch.version.cuda}"]
names += [f"{name} {importlib.metadata.version(name)}" for name in ("vllm", "openrlhf", "deepspeed")]
names.append("flash-attn" if importlib.util.find_spec("flash_attn") else "no flash-attn")
print(", ".join(names))
END
    printf '\n| What | Found |\n|---|---|\n'
} >"$report"

attempt parts "$python" -W ignore launch/gpu_parts.py --device cuda --out "$logs/parts.md"
benchmark steps overhead.py --only steps --device cuda --ranks 1 --minutes 2
benchmark selection selection.py --device cuda --sizes 1000000 16000000
quickstart quickstart_one 1
quickstart quickstart_one_openrlhf 1 --policy_loss openrlhf
quickstart quickstart_one_fused_head 1 --actor.fused_head
if ((gpus >= 2)); then
    quickstart quickstart_two 2
    quickstart two_ranks 2 --actor.num_gpus_per_node 2 --vllm.num_engines 2 --train.colocate_all --vllm.enable_sleep \
        --ds.enable_sleep
    benchmark selection_two_ranks selection.py --device cuda --ranks 2 --sizes 1000000 16000000
    benchmark steps_two_ranks overhead.py --only steps --device cuda --ranks 2 --minutes 2
fi
if ((gpus >= 3)); then quickstart quickstart_three 3; fi

for name in parts.md steps.log steps_two_ranks.log selection.log selection_two_ranks.log; do
    [[ ! -f $logs/$name ]] || { printf '\n%s\n\n' "${name%.*}"; cat "$logs/$name"; } >>"$report"
done
cat "$report"
say "table and logs: ${logs#"$PWD/"}; paste the table into docs/cost.md"
exit $((failures > 0))
