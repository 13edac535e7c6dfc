"""STARE inside OpenRLHF's real actor group: Ray actors, DeepSpeed ZeRO-3 on two ranks, fixed experiences, no vLLM."""

import math
import os
import subprocess
from pathlib import Path

import pytest
import ray
import torch
from harness import ActorGroup, fixed_experiences, tokens

from openrlhf_stare import StareOptions, surprisal_thresholds, token_weights
from openrlhf_stare.methods import base

BATCH = "--rollout.batch_size 4 --train.batch_size 16 --train.micro_batch_size 2".split()
GATE_ON, GATE_OFF = ["--entropy.target", "9"], ["--entropy.target", "1e-6"]


@pytest.fixture(scope="module")
def ranks(group_of):
    """Two processes. A policy is started in them anew for every test that has flags of its own."""
    return group_of(2)


def train(group: ActorGroup, flags: list[str]) -> dict:
    """One log-prob pass and one `fit` on the same rollout, from the start."""
    group.start([*BATCH, *flags])
    group.forward(fixed_experiences())
    statuses = group.fit(fixed_experiences())
    assert statuses[0] == statuses[1], "every figure is the same on all ranks"
    return {
        "status": statuses[0],
        "parameters": group.parameters(),
        "generators": group.run("generator_state"),
    }


@pytest.fixture(scope="module")
def openrlhf(ranks) -> dict:
    return train(ranks, ["--policy_loss", "openrlhf"])


@pytest.mark.parametrize(
    "flags", [GATE_OFF, [*GATE_ON, "--stare.reweight_w", "1"]], ids=["gate off", "W = 1 under O1"]
)
def test_without_reweighting_training_is_openrlhfs_bit_for_bit(ranks, openrlhf, flags):
    stare = train(ranks, flags)
    for name, parameter in openrlhf["parameters"].items():
        assert torch.equal(parameter, stare["parameters"][name]), name
    shared = openrlhf["status"].keys() - {"entropy/seconds"}
    assert {key: openrlhf["status"][key] for key in shared} == {key: stare["status"][key] for key in shared}
    # Our code draws nothing from torch's global generator, so it stands where OpenRLHF's loss leaves it.
    for ours, theirs in zip(stare["generators"], openrlhf["generators"], strict=True):
        assert torch.equal(ours, theirs)


def test_a_rollout_on_which_only_the_critic_trains_leaves_nothing_behind(ranks):
    method = ["--policy_loss", "high_entropy"]  # which keeps every token's entropy of the log-prob pass
    alone = train(ranks, method)
    ranks.start([*BATCH, *method])
    ranks.forward(fixed_experiences(seed=1))
    ranks.append(fixed_experiences(seed=1))
    ranks.run("drop_rollout")
    ranks.forward(fixed_experiences())
    status = ranks.fit(fixed_experiences())[0]
    shared = status.keys() - {"entropy/seconds"}
    assert {key: status[key] for key in shared} == {key: alone["status"][key] for key in shared}
    for name, parameter in ranks.parameters().items():
        assert torch.equal(parameter, alone["parameters"][name]), name


def test_a_model_that_made_no_step_is_not_saved(ranks, tmp_path):
    ranks.start([*BATCH, "--ckpt.output_dir", str(tmp_path / "model")])
    for result in ranks.group.async_run_method("save_model"):
        with pytest.raises(ray.exceptions.RayTaskError, match="NothingTrained: No optimizer step was made"):
            ray.get(result, timeout=60)
    assert not (tmp_path / "model").exists()


@pytest.fixture
def small_disk(tmp_path):
    """A folder that is a file system of its own, with room for one checkpoint (4.3 MB) and a half."""
    folder = tmp_path / "disk"
    folder.mkdir()
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    options = f"size=6500k,uid={os.getuid()}"
    subprocess.run([*as_root, "mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    yield folder
    subprocess.run([*as_root, "umount", folder], check=True)


def test_a_full_disk_is_told_and_leaves_the_last_checkpoint(group_of, small_disk):
    # A single rank: of two, one may find room and wait for the other, which ends a job but not this shared group.
    rank = group_of(1)
    rank.start([*BATCH, "--ckpt.path", str(small_disk)])
    rank.forward(fixed_experiences())
    rank.fit(fixed_experiences())  # without which Adam has no states
    rank.run("save_checkpoint", "global_step1")
    sentence = f"The checkpoint global_step2 could not be written to --ckpt.path {small_disk}, where 0 MiB are free"
    with pytest.raises(ray.exceptions.RayTaskError, match=sentence):
        rank.run("save_checkpoint", "global_step2")
    assert (small_disk / "_actor/latest").read_text() == "global_step1"


# Every surrogate of OpenRLHF at once: a dual clip, and tokens that the importance correction drops.
CORRECTED = [
    *("--actor.dual_clip", "3", "--algo.advantage.is_correction_level", "token", "--train.max_epochs", "2"),
    *("--algo.advantage.is_correction_threshold", "0.9", "1.2"),
]


@pytest.fixture(scope="module")
def corrected(ranks) -> dict:
    return train(ranks, [*CORRECTED, "--policy_loss", "openrlhf"])


@pytest.fixture(scope="module")
def plain(ranks) -> dict:
    return train(ranks, [*CORRECTED, "--policy_loss", "openrlhf", "--actor.adam.lr", "1e-2"])


COMPOSED = ["stare+entropy_bonus", "clip_higher+repo"]


@pytest.mark.parametrize("name", [*(name for name in base.names() if base.find(name)().strengths), *COMPOSED])
def test_at_neutral_strength_every_method_is_openrlhfs_bit_for_bit(ranks, corrected, name):
    gate_off = ["--entropy.schedule", "gate", "--entropy.target", "1e-6"]
    status = (neutral := train(ranks, [*CORRECTED, "--policy_loss", name, *gate_off]))["status"]
    for parameter, values in corrected["parameters"].items():
        assert torch.equal(values, neutral["parameters"][parameter]), parameter
    shared = corrected["status"].keys() - {"entropy/seconds"}
    assert {key: corrected["status"][key] for key in shared} == {key: status[key] for key in shared}
    assert status["entropy/gate_on"] == status["entropy/effort"] == 0 and status["entropy/authority"] == 1


@pytest.mark.parametrize("name", [*base.names(), *COMPOSED])
def test_every_method_acts_on_two_ranks(ranks, plain, name):
    schedule = "open" if name in ("ce_gppo", "kl_cov") else "pi"
    acts = ["--policy_loss", name, "--entropy.schedule", schedule, "--entropy.target", "9", "--actor.adam.lr", "1e-2"]
    trained = train(ranks, [*CORRECTED, *acts])
    assert trained["status"]["entropy/gate_on"] == 1
    parts = tuple(f"{part}/" for part in name.split("+"))
    figures = {key: value for key, value in trained["status"].items() if key.startswith(parts)}
    assert {key.partition("/")[0] for key in figures} >= {part[:-1] for part in parts if part != "ce_gppo/"}
    assert all(math.isfinite(value) for value in figures.values())
    different = [
        name for name, values in plain["parameters"].items() if not torch.equal(values, trained["parameters"][name])
    ]
    assert different, "the method has changed nothing"


def test_a_percentage_and_both_sides_on_two_ranks(ranks, corrected):
    """Far below H_0: the entropy is pushed down, by the counters of two methods; and a stop is a percentage, too."""
    percent = (
        "--policy_loss stare+entropy_bonus --entropy.schedule pi --entropy.target 10% --entropy.sides both".split()
    )
    ranks.start([*BATCH, *percent, "--entropy.stop_above", "50%", "--entropy.stop_after", "2"])
    ranks.forward(fixed_experiences())
    statuses = ranks.fit(fixed_experiences())
    status = statuses[0]
    assert statuses[1] == status and status["entropy/target"] == pytest.approx(0.1 * status["entropy/mean"])
    assert (status["entropy/effort"], status["entropy/gate_on"]) == (-1, 1)
    assert status["stare/reweight_w"] == pytest.approx(1 / 60) and status["stare/reweight_m"] == pytest.approx(1 / 0.3)
    assert status["entropy_bonus/coefficient"] == -0.2
    ranks.forward(fixed_experiences())
    ranks.append(fixed_experiences())
    for result in ranks.group.async_run_method("fit"):
        with pytest.raises(
            ray.exceptions.RayTaskError, match=r"above --entropy.stop_above 50% \(.* nats\) for 2 roll"
        ):
            ray.get(result, timeout=60)


def test_openrlhfs_loss_logs_the_entropy_and_nothing_else_of_ours(openrlhf):
    ours = {key for key in openrlhf["status"] if key.startswith(("stare/", "entropy/"))}
    assert ours == {"entropy/mean", "entropy/authority", "entropy/seconds"}


class TestGateOn:
    """One policy, several rollouts."""

    @pytest.fixture(scope="class")
    @classmethod
    def group(cls, ranks):
        ranks.start([*BATCH, *GATE_ON, "--stare.variant", "C2"])
        return ranks

    def test_entropy_and_thresholds_are_over_all_ranks(self, addends, openrlhf, group):
        experiences = fixed_experiences()
        group.forward(experiences)
        statuses = group.fit(experiences)
        assert statuses[0] == statuses[1]
        status = statuses[0]

        # The entropy: a sum over a count of tokens, as one process finds it with the same weights.
        assert status["entropy/mean"] == pytest.approx(entropy_of(addends / "model", experiences), abs=1e-5)

        # The sets: against the tokens of both ranks together.
        log_probs, advantages = tokens(experiences)
        config = StareOptions(variant="C2")
        taus = surprisal_thresholds(-log_probs, advantages, top_p_ratio=config.top_p_ratio)
        assert group.run("thresholds") == [tuple(float(tau) for tau in taus)] * 2
        weights = token_weights(log_probs, advantages, torch.ones_like(log_probs), config=config)
        assert status["stare/mean_weight"] == pytest.approx(weights.double().mean().item(), rel=1e-12)
        assert status["stare/positive_reweight_ratio"] == pytest.approx((weights > 1).double().mean().item())
        assert status["stare/negative_reweight_ratio"] == pytest.approx((weights < 1).double().mean().item())
        assert status["stare/positive_candidate_ratio"] == pytest.approx((advantages > 0).double().mean().item())
        assert (status["entropy/gate_on"], status["stare/reweight_w"], status["stare/reweight_m"]) == (1, 1.1, 0.9)

        parameters = group.parameters()
        assert any(not torch.equal(parameters[name], theirs) for name, theirs in openrlhf["parameters"].items())

    @pytest.mark.parametrize("rank", [0, 1, "both"])
    def test_no_positive_advantage_on_a_rank(self, group, rank):
        experiences = fixed_experiences(seed=1)
        emptied = {0: experiences[:8], 1: experiences[8:], "both": experiences}[rank]
        for experience in emptied:
            experience.advantages = -experience.advantages.abs()
        group.forward(experiences)
        status = group.fit(experiences)[0]
        taus = surprisal_thresholds(*surprisals(experiences), top_p_ratio=0.1)
        assert group.run("thresholds") == [tuple(float(tau) for tau in taus)] * 2
        assert math.isinf(status["stare/tau_positive"]) == (rank == "both")

    def test_a_left_out_response_changes_nothing_else(self, group):
        experiences = fixed_experiences(seed=2)
        lost = experiences[3]
        lost.advantages = torch.zeros_like(lost.advantages)
        lost.action_mask = torch.zeros_like(lost.action_mask)
        group.forward(experiences)
        status = group.fit(experiences)[0]
        assert all(math.isfinite(value) for value in status.values())
        taus = surprisal_thresholds(*surprisals(experiences), top_p_ratio=0.1)
        assert group.run("thresholds")[0] == tuple(float(tau) for tau in taus)

    def test_a_non_finite_log_prob_ends_the_job_before_any_step(self, group):
        before = group.parameters()
        experiences = fixed_experiences(seed=3)
        broken = experiences[0].action_log_probs.clone()
        broken[0, -1] = math.nan
        experiences[0].action_log_probs = broken
        group.append(experiences)
        for result in group.group.async_run_method("fit"):  # every rank says so, the one without the NaN too
            with pytest.raises(ray.exceptions.RayTaskError, match="1 non-finite log-probs"):
                ray.get(result, timeout=60)
        after = group.parameters()
        assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("policy_loss", ["stare", "openrlhf"])
def test_a_collapsed_policy_ends_the_job_on_all_ranks_before_any_step(ranks, policy_loss):
    ranks.start([*BATCH, "--policy_loss", policy_loss, "--entropy.stop_below", "9", "--entropy.stop_after", "2"])
    ranks.forward(fixed_experiences())
    ranks.fit(fixed_experiences())
    before = ranks.parameters()
    ranks.forward(fixed_experiences())
    ranks.append(fixed_experiences())
    for result in ranks.group.async_run_method("fit"):
        with pytest.raises(
            ray.exceptions.RayTaskError, match="below --entropy.stop_below 9.0 for 2 rollouts in a row"
        ):
            ray.get(result, timeout=60)
    after = ranks.parameters()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("flags", [["--policy_loss", "openrlhf", "--actor.entropy_coef", "0.01"], GATE_ON])
def test_steps_and_micro_batches_without_a_token_harm_nothing(ranks, flags):
    ranks.start(["--rollout.batch_size", "4", "--train.batch_size", "8", "--train.micro_batch_size", "2", *flags])
    before = ranks.parameters()
    for lost in (16, 10):
        experiences = fixed_experiences()
        ranks.forward(experiences)
        for experience in experiences[:lost]:
            experience.advantages = torch.zeros_like(experience.advantages)
            experience.action_mask = torch.zeros_like(experience.action_mask)
        for status in ranks.fit(experiences):
            assert all(math.isfinite(value) or "tau" in name for name, value in status.items()), status
        after = ranks.parameters()
        assert all(value.isfinite().all() for value in after.values())
        assert all(torch.equal(after[name], value) for name, value in before.items()) == (lost == 16)


def test_the_entropy_bonus_acts_in_a_first_rollout_without_any_advantage(ranks):
    start = ["--policy_loss", "entropy_bonus", "--entropy.target", "9"]
    ranks.start([*BATCH, *start])
    before = ranks.parameters()
    experiences = fixed_experiences()
    for experience in experiences:
        experience.advantages = torch.zeros_like(experience.advantages)
    ranks.forward(experiences)
    status = ranks.fit(experiences)[0]
    assert (status["entropy/authority"], status["entropy_bonus/coefficient"]) == (0, 0.005)
    after = ranks.parameters()
    assert any(not torch.equal(after[name], value) for name, value in before.items())


def test_lora_trains_with_the_same_thresholds(ranks):
    # Without vLLM, whose weight sync refuses adapters.
    ranks.start([*BATCH, *GATE_ON, "--ds.lora.rank", "4", "--ds.zero_stage", "2"])
    experiences = fixed_experiences()
    before = ranks.parameters()
    ranks.forward(experiences)
    status = ranks.fit(experiences)[0]
    after = ranks.parameters()
    taus = surprisal_thresholds(*surprisals(experiences), top_p_ratio=0.1)
    assert ranks.run("thresholds") == [tuple(float(tau) for tau in taus)] * 2
    assert status["entropy/gate_on"] == 1 and status["stare/mean_weight"] > 1
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all("lora_" in name for name in moved)


def surprisals(experiences) -> tuple[torch.Tensor, torch.Tensor]:
    log_probs, advantages = tokens(experiences)
    return -log_probs, advantages


def entropy_of(model: Path, experiences) -> float:
    """The mean over all action tokens of the next-token entropy, without OpenRLHF, DeepSpeed or ranks."""
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    total = count = 0.0
    for experience in experiences:
        with torch.no_grad():
            logits = policy(experience.sequences).logits.double()[:, :-1]
        log_probs = logits.log_softmax(dim=-1)
        entropies = -(log_probs.exp() * log_probs).sum(dim=-1)[experience.action_mask.bool()]
        total, count = total + entropies.sum().item(), count + entropies.numel()
    return total / count
