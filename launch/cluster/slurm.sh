#!/usr/bin/env bash
#SBATCH --job-name=openrlhf-stare
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
# A Ray cluster for as long as one recipe runs: sbatch launch/cluster/slurm.sh launch/recipes/short_cot_7b.sh [flags]
# Submit it from this checkout, on a file system that all nodes share, with the environment of launch/install.sh active.
# A job that is requeued goes on from its last checkpoint.
set -euo pipefail

(($#)) || { echo "usage: sbatch launch/cluster/slurm.sh RECIPE [flags of train_ray]" >&2; exit 2; }
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
# Since Slurm 22.05 srun does not take --cpus-per-task from sbatch: unsaid, a step gets one CPU.
on() {
    srun --nodes=1 --ntasks=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}" --overlap \
        --nodelist="$1" "${@:2}"
}

# The head's address towards the last node: its own name may lead to 127.0.1.1, as in Debian's /etc/hosts. No packet is
# sent by connecting a datagram socket.
towards="import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); s.connect((sys.argv[1], 9))
print(s.getsockname()[0])"
head=$(on "${nodes[0]}" python -c "$towards" "${nodes[-1]}")
export RAY_PORT=$((20000 + SLURM_JOB_ID % 10000)) # two jobs may share a head node's network

NODE_IP=$head on "${nodes[0]}" launch/cluster/start_head.sh --block --num-gpus="$SLURM_GPUS_ON_NODE" &
for node in "${nodes[@]:1}"; do
    # The head may not be up yet: Ray on a worker gives up after a while.
    on "$node" bash -c "until launch/cluster/start_worker.sh $head --block --num-gpus=$SLURM_GPUS_ON_NODE; do
        sleep 5; done" &
done

export RAY_ADDRESS=$head:$RAY_PORT NODES=$SLURM_JOB_NUM_NODES GPUS_PER_NODE=$SLURM_GPUS_ON_NODE
all_there="import ray; ray.init(log_to_driver=False); exit(len(ray.nodes()) < $NODES)"
for _ in {1..60}; do
    ! on "${nodes[0]}" python -c "$all_there" 2>/dev/null || break
    sleep 5
done
on "${nodes[0]}" bash "$@" --preflight
on "${nodes[0]}" bash "$@" # when this script ends, Slurm ends Ray's steps with it
