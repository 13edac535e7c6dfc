#!/usr/bin/env bash
# Multi-turn tool use with Qwen2.5-7B and a Python tool: 8,192 tokens of prompt, turns and tool output. See common.sh.
: "${MODEL:=Qwen/Qwen2.5-7B}" "${RESPONSE_TOKENS:=7168}"
agent=openrlhf_stare/tools/agent.py
differs="The published run starts from Qwen2.5-7B after supervised training on the 2,000 examples of ReTool: MODEL."
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
