#!/usr/bin/env bash
# Long CoT with Qwen3-8B-Base: 16,384 tokens of prompt and response. See common.sh.
model=Qwen/Qwen3-8B-Base
: "${RESPONSE_TOKENS:=15360}" "${TOKENS_PER_GPU:=16384}"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
