#!/usr/bin/env bash
# Long CoT with Qwen3-8B-Base: 16,384 tokens of prompt and response. See common.sh.
model=Qwen/Qwen3-8B-Base
response_tokens=15360 tokens_per_gpu=16384
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
