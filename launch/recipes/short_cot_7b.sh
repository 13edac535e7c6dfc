#!/usr/bin/env bash
# Short CoT with Qwen2.5-Math-7B: prompts of up to 1,024 tokens, responses of up to 3,072. See common.sh.
model=Qwen/Qwen2.5-Math-7B
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
