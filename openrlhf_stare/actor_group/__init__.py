"""What runs inside OpenRLHF's policy actor and critic on every rank: subclasses of these and of their trainers, the
entropy meter, the one policy loss for all methods, and the token record.

In the policy actor meter, controller and method meet. It imports any room but the driver's and `rollout/`.
"""
