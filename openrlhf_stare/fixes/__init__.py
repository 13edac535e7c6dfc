"""Faults of OpenRLHF 0.11.2 that concern everybody, mended: a file each, which starts with what breaks without it.

A file changes one class or one module of OpenRLHF and knows nothing of our methods. It imports `algorithms/`,
`dealing.py`, `notices.py` and OpenRLHF. `worker.py` announces fixes by name, so that they cost nothing until needed.
"""
