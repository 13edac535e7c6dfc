#!/usr/bin/env bash
# Starts Ray on the head node: launch/cluster/start_head.sh [flags of `ray start`]
# NODE_IP names the address by which the other nodes reach this one, where Ray would choose another.
#
# The dashboard, which also takes jobs, listens on 127.0.0.1 alone: whoever reaches it can run programs here. From
# elsewhere use `ssh -L 8265:127.0.0.1:8265 HEAD`. Ray's own ports between the nodes are as trusting, so keep their
# network closed to others, or start Ray with RAY_AUTH_MODE=token on every node.
set -euo pipefail

exec ray start --head --port="${RAY_PORT:-6379}" --dashboard-host="${DASHBOARD_HOST:-127.0.0.1}" \
    ${NODE_IP:+--node-ip-address="$NODE_IP"} --disable-usage-stats "$@"
