"""Equal shares for all ranks: a rollout that OpenRLHF would deal unevenly is cut."""

import importlib
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from advantage_step import dealing_args
from openrlhf.trainer.ppo_utils.experience import Experience, balance_experiences

from openrlhf_stare.rollout import samples_generator as ours


def shares(count: int, ranks: int, micro: int, dynamic: bool) -> list[int]:
    """How many of `count` responses OpenRLHF gives each rank."""
    if dynamic:  # balance_experiences: one by one
        return [len(range(rank, count, ranks)) for rank in range(ranks)]
    batches = [min(micro, count - start) for start in range(0, count, micro)]
    size = math.ceil(len(batches) / ranks)  # RayActorGroup.async_run_method_batch: contiguous chunks, rounded up
    return [sum(batches[rank * size : (rank + 1) * size]) for rank in range(ranks)]


def is_dealt_evenly(count: int, ranks: int, micro: int, dynamic: bool) -> bool:
    dealt = shares(count, ranks, micro, dynamic)
    return min(dealt) > 0 and min(dealt) == max(dealt)


@pytest.mark.parametrize(("count", "ranks"), [(1, 1), (7, 1), (3, 2), (8, 2), (3, 3), (4, 3), (7, 3), (12, 3)])
def test_the_shares_above_are_openrlhfs(count, ranks, monkeypatch):
    import ray
    from openrlhf.trainer.ray.launcher import RayActorGroup

    responses = [Experience(sequences=torch.zeros(1, 2), total_length=torch.tensor([1.0])) for _ in range(count)]
    args = dealing_args(ranks=ranks)
    balanced = balance_experiences(responses, args)
    assert [len(batch.sequences) for batch in balanced] == shares(count, ranks, 1, dynamic=True)

    monkeypatch.setattr(ray, "put", lambda value: value)
    group = object.__new__(RayActorGroup)
    rank = SimpleNamespace(execute_batch=SimpleNamespace(remote=lambda method, chunk, start, end: chunk["batch"]))
    group._actor_handlers, group.duplicate_actors = [rank] * ranks, 1
    dealt = group.async_run_method_batch("append", batch=list(range(count)))
    assert [len(chunk) for chunk in dealt] == shares(count, ranks, 1, dynamic=False)


@pytest.mark.parametrize("dynamic", [False, True], ids=["micro-batches", "dynamic batches"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("micro", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_most_is_kept_that_can_be_dealt_evenly(ranks, micro, k, dynamic):
    for prompts, train in itertools.product((4, 6, 12), (4, 6, 12, 24)):
        full = prompts * k
        args = dealing_args(ranks, micro, k, prompts, train, dynamic)
        for count in range(0, full + 1, k):

            def allowed(kept, count=count, full=full, train=train):
                whole_steps = count == full or kept % train == 0
                even = ranks == 1 or is_dealt_evenly(kept, ranks, micro, dynamic)
                return kept % k == 0 and whole_steps and even

            largest = max((kept for kept in range(1, count + 1) if allowed(kept)), default=0)
            assert ours.evenly_dealt(count, args) == largest, f"{count} of {full}, train batches of {train}"


def test_a_full_rollout_that_openrlhf_deals_evenly_loses_nothing():
    for ranks, micro, k, prompts in itertools.product((1, 2, 3, 4), (1, 2, 3), (1, 2, 4), (4, 6, 12)):
        if is_dealt_evenly(prompts * k, ranks, micro, dynamic=False):
            assert ours.evenly_dealt(prompts * k, dealing_args(ranks, micro, k, prompts, train=7)) == prompts * k


@pytest.mark.parametrize(
    ("count", "kept"), [(32, 32), (28, 16), (20, 16), (16, 16), (12, 0), (0, 0)], ids=lambda value: str(value)
)
def test_a_short_rollout_fills_whole_optimizer_steps_or_is_skipped(count, kept):
    assert ours.evenly_dealt(count, dealing_args(ranks=2, micro=2, k=4, prompts=8, train=16)) == kept


def test_ranks_that_hold_the_same_responses_count_once():
    for ring, tensor_parallel in ((2, 1), (1, 2), (2, 2)):
        args = dealing_args(ranks=2, k=3, prompts=3, ring=ring, tensor_parallel=tensor_parallel)
        assert ours.evenly_dealt(9, args) == 6


@pytest.fixture
def samples_generator():
    return importlib.import_module("openrlhf.trainer.ppo_utils.samples_generator")


def test_a_rollout_is_cut_with_a_word_and_openrlhf_goes_on(samples_generator, monkeypatch):
    generator = object.__new__(samples_generator.SamplesGenerator)
    generator.args = dealing_args(ranks=2, k=2, prompts=4, train=4)
    generator._dataloader_iter = None  # the prompts are exhausted, some responses are left
    warnings = []
    monkeypatch.setattr(ours, "notice", warnings.append)
    samples = [SimpleNamespace(info={}) for _ in range(14)]
    generator._sample_buffer = list(samples)
    assert generator.generate_samples() == (samples[:8], None, 0, False)
    assert warnings == []
    assert generator.generate_samples() == (samples[8:12], None, 0, True)
    assert len(warnings) == 1 and "2 left out" in warnings[0]
    generator._sample_buffer = samples[:2]
    assert generator.generate_samples() == ([], None, 0, True)  # OpenRLHF skips an empty rollout
