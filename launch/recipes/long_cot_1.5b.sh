#!/usr/bin/env bash
# Long CoT with DeepSeek-R1-Distill-Qwen-1.5B: 16,384 tokens of prompt and response. See common.sh.
model=deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
response_tokens=15360 tokens_per_gpu=16384
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
