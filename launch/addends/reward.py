"""The reward of the addends task, which the package has, for `--reward.remote_url`."""

from openrlhf_stare.quickstart.reward import reward_func

__all__ = ["reward_func"]
