#!/usr/bin/env bash
# Short CoT with Qwen2.5-32B: milder weights and longer responses than 7B. See common.sh.
model=Qwen/Qwen2.5-32B
: "${RESPONSE_TOKENS:=7168}" "${REWEIGHT_W:=1.05}" "${REWEIGHT_M:=0.95}"
: "${TENSOR_PARALLEL:=4}" "${TOKENS_PER_GPU:=8192}"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
