"""Surprising tokens of good responses count more: weight 1 + strength · surprisal where A > 0."""

from openrlhf_stare import Strength
from openrlhf_stare.methods.base import Method


class SurprisalWeights(Method):
    control = {"schedule": "gate"}
    strengths = (Strength("strength", neutral=0.0, start=0.1, bound=1.0),)

    def open_rollout(self, tokens, strengths, group):
        self.strength = strengths["strength"]
        return {}

    def weights(self, tokens):
        if self.strength == 0:
            return None
        return 1 - self.strength * tokens.log_probs * (tokens.advantages > 0)
