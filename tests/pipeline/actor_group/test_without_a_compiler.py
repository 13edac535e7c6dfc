"""What trains on a GPU without a CUDA toolkit, as far as a CPU can show it, on two ranks with ZeRO-3.

Torch's attention over packed sequences, the head without logits, and torch's fused Adam, whose states sleep between
rollouts.
"""

import pytest
import torch
from harness import ActorGroup, fixed_experiences

# With an epsilon of 1 Adam's step is nearly the gradient; by its sign, rounding around zero would be a whole step.
BATCH = """--rollout.batch_size 4 --train.batch_size 8 --train.micro_batch_size 2 --entropy.target 9
--actor.adam.eps 1 --actor.adam.lr 0.03""".split()
WITHOUT = ["--ds.packing_samples", "--actor.fused_head", "--ds.enable_sleep"]
AWAKE: list[str] = []
ASLEEP = ["contiguous_grad_buffer", "hp_params", "lp_grads", "optim_states"]


@pytest.fixture
def group(group_of):
    group = group_of(2)
    yield group
    group.run("without_a_compiler", False)


def rollout(group: ActorGroup, seed: int, sleeps: bool) -> tuple[dict, torch.Tensor]:
    """As OpenRLHF's trainer goes about it: the figures, and the master weights in the end."""
    group.run("seed")
    experiences = fixed_experiences(seed=seed)
    group.forward(experiences)
    if sleeps:
        group.run("reload_states")
        assert [of["asleep"] for of in group.run("optimizer")] == [AWAKE] * 2
    statuses = group.fit(experiences)
    if sleeps:
        group.run("offload_states")
    assert statuses[0] == statuses[1]
    del statuses[0]["entropy/seconds"]
    return statuses[0], flat(group.run("master_weights")[0])


def flat(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in weights.values()])


def test_three_rollouts_are_those_of_a_plain_job_also_past_a_checkpoint_that_was_saved_asleep(group, tmp_path):
    group.start(BATCH)
    start = flat(group.parameters())
    plain = [rollout(group, seed, sleeps=False) for seed in range(3)]

    flags = [*BATCH, *WITHOUT, "--ckpt.path", str(tmp_path)]
    group.run("without_a_compiler", True)
    group.start(flags)
    assert group.run("optimizer") == [{"class": "AdamW", "fused": True, "asleep": ASLEEP}] * 2
    ours = [rollout(group, seed, sleeps=True) for seed in range(2)]
    group.run("save_checkpoint", "global_step2", {"global_step": 2})
    ours.append(rollout(group, 2, sleeps=True))

    for (their_figures, theirs), (figures, weights) in zip(plain, ours, strict=True):
        assert figures == pytest.approx(their_figures, rel=1e-4, abs=1e-6)
        moved = (theirs - start).norm()
        assert moved > 1e-4 and (weights - theirs).norm() < 1e-4 * moved

    group.start([*flags, "--ckpt.load_enable"])
    assert [of["asleep"] for of in group.run("optimizer")] == [ASLEEP] * 2
    figures, weights = rollout(group, 2, sleeps=True)
    assert figures == ours[2][0] and torch.equal(weights, ours[2][1])
