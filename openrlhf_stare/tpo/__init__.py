"""Target Policy Optimization (arXiv 2604.06159): a loss per prompt, which no token's weight or penalty can say.

target.py is the mathematics and loss.py the loss, on torch alone; whole_groups.py keeps a prompt's responses together;
checks.py is what the driver asks. `actor_group/target_trainer.py` trains with them. Nothing here knows of the methods.
"""
