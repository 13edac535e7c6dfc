"""What runs inside OpenRLHF's policy actor on every rank: the policy actor, where meter, controller and method meet,
the entropy meter, the one policy loss for all methods, and the token record.

It may touch OpenRLHF's policy actor, its loss and its trainer's step count, and imports any room but the driver's.
"""
