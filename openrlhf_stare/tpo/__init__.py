"""Target Policy Optimization (arXiv 2604.06159): a loss per prompt, which no token's weight or penalty can say.

target.py is the mathematics, on torch alone. The rest works inside OpenRLHF's actors and imports it, `algorithms/`,
`options.py` and `dealing.py`; checks.py is what the driver asks. Nothing here knows of the methods.
"""
