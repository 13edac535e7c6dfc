"""Ways to act on the entropy of a policy through its loss, one file each. See base.py.

Nothing here imports more than torch, `algorithms/`, `dealing.py`, `options.py` and `rules.py`.
"""
