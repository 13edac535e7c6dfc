"""The end of a job whose reward mostly fails: it would train on the few responses for which it does not."""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_stare.options import Options, option


class RewardsFail(ValueError):
    """Most responses had no reward, for too many rollouts in a row."""


@dataclass(frozen=True)
class FailedRewards(Options):
    stop_after: int = option(
        10,
        "end the job after so many rollouts in a row without a finite reward for more than half of the responses; "
        "0: never",
        within="[0, inf)",
    )


class RewardWatch:
    """Counts the rollouts in a row in which most responses had no reward."""

    def __init__(self, options: FailedRewards) -> None:
        self.options, self.failed = options, 0

    def count(self, without: int, responses: int) -> None:
        """Take one rollout: how many of its responses had no finite reward.

        Raises:
            RewardsFail: it was the last one that is endured.
        """
        self.failed = self.failed + 1 if 2 * without > responses else 0
        if self.options.stop_after and self.failed >= self.options.stop_after:
            raise RewardsFail(
                f"In {self.failed} rollouts in a row more than half of the responses had no reward, in the last one "
                f"{without} of {responses}: fix the reward function or server, whose first error stands above, or "
                "give another --failed_rewards.stop_after (0 for never)"
            )
