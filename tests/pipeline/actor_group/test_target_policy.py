"""TPO on 1, 2 and 4 ranks, by whole groups and in two stages, is autograd over the whole batch on one process."""

import pytest
import torch
from target_policy import EPOCHS, LEFT_OUT, PROMPTS, RESPONSES, SAMPLES, in_one_process, rollout, train

WAYS = {
    "whole groups": ["--train.micro_batch_size", str(SAMPLES)],
    "two stages": ["--train.micro_batch_size", str(SAMPLES // 2)],
    "dynamic batches": [
        "--train.dynamic_batch_enable",
        *"--train.max_tokens_per_gpu 42 --rollout.max_tokens_per_gpu 42".split(),
    ],
}


@pytest.fixture(scope="module")
def reference(addends):
    return in_one_process(addends / "model")


@pytest.fixture(scope="module", params=[1, 2, 4], ids=lambda ranks: f"{ranks} ranks")
def group(group_of, request):
    return group_of(request.param)


def distance(weights: dict, others: dict) -> float:
    assert weights.keys() == others.keys()
    return sum((weights[name] - others[name]).square().sum().item() for name in weights) ** 0.5


@pytest.mark.parametrize("way", WAYS)
def test_any_way_on_any_ranks_trains_as_one_process_does(addends, reference, group, way):
    expected, losses, target = reference
    weights, statuses = train(group, WAYS[way])
    start = in_one_process(addends / "model", epochs=0)[0]
    assert distance(weights, expected) < 1e-3 * distance(expected, start)

    status = statuses[0]
    assert all(other == status for other in statuses), "every figure is the same on all ranks"
    prompts = PROMPTS - 1  # the third has no response
    negative_entropy = torch.xlogy(target, target).sum().item() / prompts
    assert status["tpo/target_kl"] == pytest.approx(losses[0] + negative_entropy, rel=1e-4)
    assert status["tpo/fit_kl"] == pytest.approx(sum(losses) / EPOCHS + negative_entropy, rel=1e-4)
    assert losses[-1] < losses[0]
    effective = [1 / q.square().sum().item() for q in target if q.any()]
    assert status["tpo/effective_responses"] == pytest.approx(sum(effective) / prompts, rel=1e-4)
    assert status["tpo/zero_variance_groups"] == zero_variance(rollout(addends / "model"))
    assert status["policy_loss"] > 0

    # Two stages make the passes of every step twice but those of the first, whose log-probs come with the rollout.
    passes = group.run("count_passes")
    assert len(set(passes)) == 1, "ZeRO-3 would wait for ever for a pass that a rank does not make"
    if way != "dynamic batches":
        a_step = RESPONSES // group.ranks // group.args.train.micro_batch_size
        assert passes[0] == a_step * (EPOCHS if way == "whole groups" else 2 * EPOCHS - 1)


def test_with_several_optimizer_steps_a_rollout_both_ways_agree(addends, group_of):
    group = group_of(2)
    # The ranks shuffle their groups, in the same order for the same seed.
    steps = ["--train.batch_size", str(RESPONSES // 2)]
    ways = [train(group, [*WAYS[way], *steps])[0] for way in ("whole groups", "two stages")]
    start = in_one_process(addends / "model", epochs=0)[0]
    assert distance(*ways) < 1e-3 * distance(ways[0], start)
    # Dynamic batches come in another order: the steps still are on every prompt once an epoch.
    status = train(group, [*WAYS["dynamic batches"], *steps, "--actor.adam.lr", "0"])[1][0]
    assert status["tpo/fit_kl"] == pytest.approx(status["tpo/target_kl"], rel=1e-5)


def zero_variance(responses) -> int:
    count = 0
    for prompt in range(PROMPTS):
        numbers = set(range(prompt * SAMPLES, (prompt + 1) * SAMPLES)) - set(LEFT_OUT)
        count += len({responses[number].rewards.item() for number in numbers}) == 1
    return count
