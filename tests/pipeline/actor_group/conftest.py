"""OpenRLHF's actor group, whose processes, slow to import, are started once for all tests here."""

from collections.abc import Callable
from pathlib import Path

import pytest
import ray
from harness import ActorGroup, start_ray


@pytest.fixture(scope="package")
def group_of(addends) -> Callable[..., ActorGroup]:
    """The group of so many ranks. Its policy is that of the last `start`. A GPU is a critic's."""
    start_ray(gpus=1 + 2 + 4 + 1, python_path=(str(Path(__file__).parents[1] / "stand_ins"),))
    groups = {}

    def group_of(ranks: int) -> ActorGroup:
        if ranks not in groups:
            groups[ranks] = ActorGroup(addends / "model", ranks=ranks, flags=None)
        return groups[ranks]

    yield group_of
    ray.shutdown()
