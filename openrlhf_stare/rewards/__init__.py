"""Reward functions: files for OpenRLHF's `--reward.remote_url`."""
