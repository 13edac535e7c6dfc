#!/usr/bin/env bash
# Multi-turn tool use with Qwen2.5-7B and a Python tool: 8,192 tokens of prompt, turns and tool output. See common.sh.
model=Qwen/Qwen2.5-7B
response_tokens=7168
# Qwen's chat template with what the tool expects; CHAT_TEMPLATE=0 gives the prompts as they are.
template='<|im_start|>system
Reason step by step. To compute something, write a program between the lines ```python and ``` that prints what you want
to know. What it prints comes back between the lines ```output and ```.<|im_end|>
<|im_start|>user
{}<|im_end|>
<|im_start|>assistant
'
agent=openrlhf_stare/tools/agent.py
differs="The published run starts from Qwen2.5-7B after supervised training on the 2,000 examples of ReTool: MODEL."
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
