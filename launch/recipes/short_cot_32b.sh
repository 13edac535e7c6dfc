#!/usr/bin/env bash
# Short CoT with Qwen2.5-32B: milder weights and longer responses than 7B. See common.sh.
model=Qwen/Qwen2.5-32B
response_tokens=7168 reweight_w=1.05 reweight_m=0.95
tensor_parallel=4 tokens_per_gpu=8192
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
