"""Advantage estimators: SR-GRPO, and what STARE needs of OpenRLHF's.

It runs in the controller actor, on rewards (P, K), a row per prompt. It imports torch, `algorithms/`, `options.py`
and, for the way in, `fixes/`; OpenRLHF's module is handed to it.
"""
