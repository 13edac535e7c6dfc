#!/usr/bin/env bash
# Starts Ray on another node: launch/cluster/start_worker.sh HEAD_IP [flags of `ray start`]
# NODE_IP names the address by which the other nodes reach this one, where Ray would choose another.
set -euo pipefail

(($#)) || { echo "usage: launch/cluster/start_worker.sh HEAD_IP [flags of ray start]" >&2; exit 2; }
head=$1
shift
exec ray start --address="$head:${RAY_PORT:-6379}" ${NODE_IP:+--node-ip-address="$NODE_IP"} --disable-usage-stats "$@"
