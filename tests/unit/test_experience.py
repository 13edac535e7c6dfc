"""What changes on the way of the data: equal shares for all ranks, the advantage step, groups kept together.

All is tried on OpenRLHF's own classes, on copies of its modules that are loaded afresh: one as OpenRLHF wrote it,
one with our change.
"""

import importlib.util
import itertools
import math
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch

from openrlhf_stare import soft_advantage, worker
from openrlhf_stare.actor_group import experience as guards

worker.install()

from openrlhf.trainer.ppo_utils.experience import (  # noqa: E402
    Experience,
    balance_experiences,
    make_experience_batch,
    split_experience_batch,
)


def fresh_copy(name: str):
    """OpenRLHF's module, executed again under a name of its own, which none of our patches is announced for."""
    spec = importlib.util.spec_from_file_location(f"copy_of_{name}", importlib.util.find_spec(name).origin)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Equal shares


def dealing_args(ranks=1, micro=1, k=1, prompts=4, train=8, dynamic=False, ring=1, tensor_parallel=1):
    return SimpleNamespace(
        actor=SimpleNamespace(num_nodes=ring, num_gpus_per_node=ranks * tensor_parallel),
        ds=SimpleNamespace(ring_attn_size=ring, tensor_parallel_size=tensor_parallel),
        rollout=SimpleNamespace(batch_size=prompts, n_samples_per_prompt=k, micro_batch_size=micro),
        train=SimpleNamespace(batch_size=train, dynamic_batch_enable=dynamic),
    )


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
            assert guards.evenly_dealt(count, args) == largest, f"{count} of {full}, train batches of {train}"


def test_a_full_rollout_that_openrlhf_deals_evenly_loses_nothing():
    for ranks, micro, k, prompts in itertools.product((1, 2, 3, 4), (1, 2, 3), (1, 2, 4), (4, 6, 12)):
        if is_dealt_evenly(prompts * k, ranks, micro, dynamic=False):
            assert guards.evenly_dealt(prompts * k, dealing_args(ranks, micro, k, prompts, train=7)) == prompts * k


@pytest.mark.parametrize(
    ("count", "kept"), [(32, 32), (28, 16), (20, 16), (16, 16), (12, 0), (0, 0)], ids=lambda value: str(value)
)
def test_a_short_rollout_fills_whole_optimizer_steps_or_is_skipped(count, kept):
    assert guards.evenly_dealt(count, dealing_args(ranks=2, micro=2, k=4, prompts=8, train=16)) == kept


def test_ranks_that_hold_the_same_responses_count_once():
    for ring, tensor_parallel in ((2, 1), (1, 2), (2, 2)):
        args = dealing_args(ranks=2, k=3, prompts=3, ring=ring, tensor_parallel=tensor_parallel)
        assert guards.evenly_dealt(9, args) == 6


@pytest.fixture
def samples_generator():
    module = fresh_copy("openrlhf.trainer.ppo_utils.samples_generator")
    guards.deal_evenly(module)
    return module


def test_a_rollout_is_cut_with_a_word_and_openrlhf_goes_on(samples_generator, monkeypatch):
    generator = object.__new__(samples_generator.SamplesGenerator)
    generator.args = dealing_args(ranks=2, k=2, prompts=4, train=4)
    generator._dataloader_iter = None  # the prompts are exhausted, some responses are left
    warnings = []
    monkeypatch.setattr(guards, "notice", warnings.append)
    generator._sample_buffer = list(range(14))
    assert generator.generate_samples() == ([0, 1, 2, 3, 4, 5, 6, 7], None, 0, False)
    assert warnings == []
    assert generator.generate_samples() == ([8, 9, 10, 11], None, 0, True)
    assert len(warnings) == 1 and "2 left out" in warnings[0]
    generator._sample_buffer = [0, 1]
    assert generator.generate_samples() == ([], None, 0, True)  # OpenRLHF skips an empty rollout


# TPO's groups


def test_under_tpo_the_responses_are_numbered_in_a_field_that_the_buffer_keeps_and_the_trainer_does_not_log():
    module = fresh_copy("openrlhf.trainer.ppo_utils.experience_maker")
    guards.number_responses(module)
    for policy_loss in ("tpo", "stare"):
        order = torch.randperm(PROMPTS * K, generator=torch.Generator().manual_seed(0)).tolist()
        experiences, _ = estimate(
            module, make_rollout(), "group_norm", sizes=[5, 7], order=order, policy_loss=policy_loss
        )
        numbers = [experience.scores for experience in experiences]
        if policy_loss == "stare":
            assert numbers == [None, None]
            continue
        assert torch.cat(numbers).tolist() == order
        # By OpenRLHF's own way into the buffer and out of it.
        for experience in experiences:
            experience.sequences = experience.attention_mask = torch.ones(len(experience.index), WIDTH + 1)
        items = [item for experience in experiences for item in split_experience_batch(experience)]
        assert make_experience_batch(items).scores.tolist() == order


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_under_tpo_dynamic_batches_are_dealt_by_whole_groups_of_even_length(ranks):
    k, prompts = 3, 12
    module = fresh_copy("openrlhf.trainer.ppo_trainer")
    guards.deal_whole_groups(module)
    args = dealing_args(ranks=ranks, k=k, dynamic=True)
    lengths = torch.randint(1, 100, (prompts * k,), generator=torch.Generator().manual_seed(1)).float()
    responses = [
        Experience(sequences=torch.zeros(1, 2), total_length=lengths[i : i + 1], scores=torch.tensor([i]))
        for i in torch.randperm(prompts * k, generator=torch.Generator().manual_seed(2)).tolist()
    ]
    dealt = {}
    for args.policy_loss in ("tpo", "stare"):
        dealt[args.policy_loss] = [batch.scores.tolist() for batch in module.balance_experiences(responses, args)]
    theirs = [batch.scores.tolist() for batch in balance_experiences(responses, args)]
    assert dealt["stare"] == theirs, "every other loss keeps OpenRLHF's way"
    assert sorted(number for share in dealt["tpo"] for number in share) == list(range(prompts * k))
    for share in dealt["tpo"]:
        assert len(share) == prompts * k // ranks
        assert all(sorted(share)[i] // k == sorted(share)[i - i % k] // k for i in range(len(share)))
    totals = [float(lengths[share].sum()) for share in dealt["tpo"]]
    assert max(totals) < 1.2 * min(totals)


# Non-finite rewards

GROUPED = ("group_norm", "rloo", "dr_grpo", "reinforce_baseline")
UNGROUPED = ("reinforce", "flash_reinforce", "gae")
WHITENED = ("reinforce_baseline", "reinforce", "gae")
EVERY_ESTIMATOR = pytest.mark.parametrize("estimator", GROUPED + UNGROUPED)

OPTIONS = {
    "plain": {},
    "length penalties": {"overlong_buffer_len": 3, "overlong_penalty_factor": 0.5, "stop_properly_penalty_coef": 0.5},
    "truncated get -0.5": {"stop_properly_penalty_coef": -0.5},
    "clipped": {"clip_range": (-0.8, 0.8)},
    "no std": {"no_std_norm": True},
}
EVERY_OPTION = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
NAN, INF = math.nan, math.inf
PROMPTS, K, WIDTH = 3, 4, 7


@pytest.fixture(scope="module")
def openrlhf():
    return fresh_copy("openrlhf.trainer.ppo_utils.experience_maker")


@pytest.fixture(scope="module")
def guarded():
    module = fresh_copy("openrlhf.trainer.ppo_utils.experience_maker")
    guards.change_advantages(module)
    return module


@pytest.fixture
def warnings(monkeypatch):
    messages = []
    monkeypatch.setattr(guards, "notice", messages.append)
    return messages


def make_rollout(lost=None) -> dict[str, torch.Tensor]:
    """12 responses to 3 prompts, of 1 to 6 tokens after a prompt; `lost` maps a response to its reward."""
    draw = torch.Generator().manual_seed(3)
    count = PROMPTS * K
    lengths = torch.randint(1, WIDTH, (count,), generator=draw)
    position = torch.arange(WIDTH)
    mask = ((position > 0) & (position <= lengths.unsqueeze(-1))).long()
    rewards = torch.randn(count, generator=draw)
    for response, reward in (lost or {}).items():
        rewards[response] = reward
    return {
        "action_mask": mask,
        "kl": torch.randn(count, WIDTH, generator=draw) * 0.3 * mask,
        "values": torch.randn(count, WIDTH, generator=draw),
        "rewards": rewards,
        "response_length": lengths,
        "truncated": torch.rand(count, generator=draw) < 0.3,
    }


def estimate(
    module,
    rollout,
    estimator,
    k=K,
    sizes=None,
    order=None,
    policy_loss="openrlhf",
    tau=0.5,
    no_std_norm=False,
    clip_range=None,
    **reward,
):
    """Run the module's advantage step on the responses, in micro-batches of `sizes` and in the given order.

    Returns the experiences as OpenRLHF hands them on, and their tensors with the responses back in their places.
    """
    args = SimpleNamespace(
        algo=SimpleNamespace(
            advantage=SimpleNamespace(estimator=estimator, gamma=1.0, lambd=0.95, no_std_norm=no_std_norm)
        ),
        rollout=SimpleNamespace(n_samples_per_prompt=k, max_new_tokens=6),
        reward=SimpleNamespace(clip_range=clip_range, **reward),
        policy_loss=policy_loss,
        sr_grpo=SimpleNamespace(tau=tau),
    )
    maker = object.__new__(module.RemoteExperienceMaker)
    maker.strategy, maker.args, maker.advantage_estimator = SimpleNamespace(args=args), args, estimator
    maker.kl_ctl = SimpleNamespace(value=0.1)
    count = len(rollout["rewards"])
    order = list(range(count)) if order is None else order
    bounds = list(itertools.accumulate(sizes or [count], initial=0))
    experiences = []
    for start, end in itertools.pairwise(bounds):
        index = order[start:end]
        tensors = {name: tensor[index].clone() for name, tensor in rollout.items()}
        info = {"reward": tensors["rewards"].clone(), "score": tensors["rewards"].clone()}
        experiences.append(module.Experience(index=index, info=info, **tensors))
    experiences = maker.compute_advantages_and_returns(experiences)
    back = torch.tensor(order).argsort()
    names = ("advantages", "returns", "action_mask", "rewards")
    results = {name: torch.cat([getattr(experience, name) for experience in experiences])[back] for name in names}
    for name in experiences[0].info:
        results[f"info {name}"] = torch.cat([experience.info[name] for experience in experiences])[back]
    return experiences, results


def only(rollout, responses) -> dict[str, torch.Tensor]:
    return {name: tensor[responses] for name, tensor in rollout.items()}


def kept_of(lost) -> list[int]:
    return [response for response in range(PROMPTS * K) if response not in lost]


def assert_lost(results, rollout, lost) -> None:
    """What a lost response looks like: no action token, NaN exactly where its tokens were, nothing else non-finite."""
    rows, tokens = list(lost), rollout["action_mask"].bool()
    assert results["action_mask"][rows].sum() == 0
    assert torch.equal(results["advantages"].isnan().nonzero(), _only_rows(tokens, rows).nonzero())
    for name in results.keys() - {"advantages"}:
        assert results[name].isfinite().all(), name
    kept = kept_of(lost)
    assert torch.equal(results["action_mask"][kept], rollout["action_mask"][kept])


def _only_rows(tokens, rows):
    chosen = torch.zeros_like(tokens)
    chosen[rows] = tokens[rows]
    return chosen


@EVERY_ESTIMATOR
@EVERY_OPTION
@pytest.mark.parametrize(
    "lost",
    [{1: NAN, 4: INF, 11: -INF}, {0: NAN, 3: NAN, 5: INF, 6: -INF, 8: NAN, 10: NAN}],
    ids=["one of each group", "two of each group"],
)
def test_the_others_get_what_openrlhf_gives_when_the_lost_are_absent(openrlhf, guarded, estimator, options, lost):
    rollout, kept = make_rollout(lost), kept_of(lost)
    _, ours = estimate(guarded, rollout, estimator, **options)
    smaller_groups = len(kept) // PROMPTS
    _, absent = estimate(openrlhf, only(rollout, kept), estimator, k=smaller_groups, **options)
    for name in ("advantages", "returns", "rewards", "info reward", "info return", "info group_reward_std"):
        torch.testing.assert_close(ours[name][kept], absent[name], rtol=1e-5, atol=1e-6)
    assert_lost(ours, rollout, lost)


UNEVEN = {5: NAN, 8: INF, 10: NAN}  # none of the first prompt, one of the second, two of the third


@EVERY_ESTIMATOR
@EVERY_OPTION
@pytest.mark.parametrize("lost", [UNEVEN, {**UNEVEN, 0: NAN, 1: NAN, 2: NAN, 3: NAN}], ids=["some", "a whole group"])
def test_groups_may_lose_different_numbers(openrlhf, guarded, estimator, options, lost):
    rollout, kept = make_rollout(lost), kept_of(lost)
    _, ours = estimate(guarded, rollout, estimator, **options)
    if estimator in UNGROUPED:
        _, absent = estimate(openrlhf, only(rollout, kept), estimator, k=1, **options)
        expected = absent["advantages"]
    else:
        # Group by group, without the whitening over the batch, which `reinforce_baseline` adds to `dr_grpo`.
        groups = [[r for r in kept if r // K == prompt] for prompt in range(PROMPTS)]
        plain = "dr_grpo" if estimator == "reinforce_baseline" else estimator
        separate = [
            estimate(openrlhf, only(rollout, group), plain, k=len(group), **options)[1] for group in groups if group
        ]
        expected = torch.cat([results["advantages"] for results in separate])
        if estimator == "reinforce_baseline":
            tokens = expected[rollout["action_mask"][kept].bool()]
            deviation = 1 if options.get("no_std_norm") else tokens.std(correction=0)
            expected = (expected - tokens.mean()) / deviation
    torch.testing.assert_close(ours["advantages"][kept], expected, rtol=1e-5, atol=1e-5)
    assert_lost(ours, rollout, lost)


@pytest.mark.parametrize("estimator", ["group_norm", "rloo", "dr_grpo"])
def test_the_only_response_left_of_its_group_has_no_advantage(guarded, estimator):
    rollout = make_rollout({0: NAN, 1: NAN, 2: NAN})
    rollout["kl"].zero_()
    _, ours = estimate(guarded, rollout, estimator)
    assert ours["advantages"][3].abs().max() == 0
    assert ours["advantages"][4:].abs().max() > 0


@EVERY_ESTIMATOR
def test_micro_batches_may_be_uneven_and_in_any_order(guarded, estimator):
    """As dynamic batches are."""
    rollout = make_rollout(UNEVEN)
    _, in_order = estimate(guarded, rollout, estimator)
    order = [7, 0, 11, 5, 2, 9, 4, 8, 1, 10, 3, 6]
    _, shuffled = estimate(guarded, rollout, estimator, sizes=[1, 5, 2, 4], order=order)
    assert in_order.keys() == shuffled.keys()
    for name, values in in_order.items():
        torch.testing.assert_close(shuffled[name], values, rtol=1e-5, atol=1e-6, equal_nan=True)


@EVERY_ESTIMATOR
@EVERY_OPTION
@pytest.mark.parametrize("loss", ["openrlhf", "stare"])
def test_finite_rewards_are_openrlhfs_bit_for_bit(openrlhf, guarded, warnings, estimator, options, loss):
    where = {"sizes": [3, 5, 4], "order": [7, 0, 11, 5, 2, 9, 4, 8, 1, 10, 3, 6]}
    ours, _ = estimate(guarded, make_rollout(), estimator, policy_loss=loss, **where, **options)
    theirs, _ = estimate(openrlhf, make_rollout(), estimator, **where, **options)
    for own, other in zip(ours, theirs, strict=True):
        assert own.info.keys() - {"stare/zero_variance_groups"} == other.info.keys()
        pairs = [(own.info[name], other.info[name]) for name in other.info]
        names = {field.name for field in fields(own)} - {"info"}
        pairs += [(getattr(own, name), getattr(other, name)) for name in names]
        for a, b in pairs:
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert not [message for message in warnings if "left out" in message]


@EVERY_OPTION
def test_the_logged_reward_and_score_are_means_over_the_others(openrlhf, guarded, options):
    rollout, kept = make_rollout(UNEVEN), kept_of(UNEVEN)
    _, absent = estimate(openrlhf, only(rollout, kept), "reinforce", k=1, **options)
    _, ours = estimate(guarded, rollout, "reinforce", **options)
    for name in ("info reward", "info score", "info return"):
        torch.testing.assert_close(ours[name].mean(), absent[name].mean())


def test_the_warning_counts(guarded, warnings):
    estimate(guarded, make_rollout(UNEVEN), "group_norm", sizes=[6, 6])
    assert warnings == ["3 of 12 responses are left out of training: reward or advantage is not finite"]


def test_whole_number_rewards_and_bool_masks_will_do(openrlhf, guarded):
    rollout = make_rollout()
    rollout["rewards"], rollout["action_mask"] = torch.arange(12), rollout["action_mask"].bool()
    _, ours = estimate(guarded, rollout, "group_norm")
    _, theirs = estimate(openrlhf, rollout, "group_norm")
    assert torch.equal(ours["advantages"], theirs["advantages"])
    rollout["rewards"] = torch.where(torch.arange(12) == 1, NAN, torch.arange(12))
    _, ours = estimate(guarded, rollout, "group_norm")
    assert_lost(ours, rollout, [1])


def test_a_non_finite_advantage_of_finite_rewards_is_left_out_too(guarded):
    rollout = make_rollout({4: 3e38, 5: 3e38, 6: -1.0, 7: 2.0})  # their sum is beyond float32
    _, ours = estimate(guarded, rollout, "group_norm")
    assert ours["action_mask"][4:8].sum() == 0
    assert torch.equal(ours["advantages"][4:8].isnan(), rollout["action_mask"][4:8].bool())
    for name in ours.keys() - {"advantages", "rewards"}:
        assert ours[name].isfinite().all(), name
    _, without = estimate(guarded, make_rollout({4: NAN, 5: NAN, 6: NAN, 7: NAN}), "group_norm")
    for others in (slice(0, 4), slice(8, 12)):
        torch.testing.assert_close(ours["advantages"][others], without["advantages"][others])


@EVERY_ESTIMATOR
def test_a_rollout_without_any_finite_reward_ends_the_job_with_a_sentence(guarded, estimator):
    with pytest.raises(RuntimeError, match="None of the 12 responses .* finite reward .*: check the reward function"):
        estimate(guarded, make_rollout(dict.fromkeys(range(12), NAN)), estimator)


def test_openrlhfs_functions_are_back_afterwards(openrlhf, guarded):
    estimate(guarded, make_rollout(UNEVEN), "group_norm")
    assert guarded.apply_length_penalties is openrlhf.apply_length_penalties
    assert guarded.compute_reward is openrlhf.compute_reward


# Groups of equal rewards

# Rewards whose float32 mean over a group of four, or whose distance from it, is not exact.
EQUAL = {0: 0.1, 1: 0.1, 2: 0.1, 3: 0.1, 8: 0.7, 9: 0.7, 10: 0.7, 11: 0.7}


def eight_equal(reward: float) -> dict[str, torch.Tensor]:
    """Eight responses to one prompt, then eight to another, with rewards that differ."""
    rollout = make_rollout()
    rollout = {name: torch.cat([tensor, tensor[:4]]) for name, tensor in rollout.items()}
    rollout["kl"].zero_()
    rollout["rewards"] = torch.tensor([reward] * 8 + [0.0, 1.0] * 4)
    return rollout


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7])
def test_eight_equal_rewards_are_noise_of_size_one_in_openrlhfs_group_norm_and_zero_under_stare(guarded, reward):
    rollout = eight_equal(reward)
    _, theirs = estimate(guarded, rollout, "group_norm", k=8)
    _, ours = estimate(guarded, rollout, "group_norm", k=8, policy_loss="stare")
    assert theirs["advantages"][:8].abs().max() > 0.5
    assert ours["advantages"][:8].eq(0).all()
    assert torch.equal(ours["advantages"][8:], theirs["advantages"][8:])


@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo"])
def test_the_others_that_subtract_a_mean_leave_noise_with_a_sign_which_is_zero_under_stare(guarded, estimator):
    noise = 0.0
    for reward in (0.1, 0.3, 0.7):
        _, theirs = estimate(guarded, eight_equal(reward), estimator, k=8)
        _, ours = estimate(guarded, eight_equal(reward), estimator, k=8, policy_loss="stare")
        noise = max(noise, theirs["advantages"][:8].abs().max().item())
        assert ours["advantages"][:8].eq(0).all()
        assert torch.equal(ours["advantages"][8:], theirs["advantages"][8:])
    assert 0 < noise < 1e-6


def test_whitening_moves_all_groups_of_equal_rewards_alike(guarded):
    """`reinforce_baseline` also subtracts the mean over the rollout's tokens, which is no rounding."""
    _, ours = estimate(guarded, eight_equal(0.3), "reinforce_baseline", k=8, policy_loss="stare")
    moved = ours["advantages"][:8].unique()
    assert len(moved) == 1 and 0 < moved.abs() < 1
    nothing_to_learn = eight_equal(0.3)
    nothing_to_learn["rewards"][:] = 0.3
    _, ours = estimate(guarded, nothing_to_learn, "reinforce_baseline", k=8, policy_loss="stare")
    assert ours["advantages"].eq(0).all()


@pytest.mark.parametrize("estimator", ["group_norm", "rloo", "dr_grpo"])
def test_a_group_of_equal_rewards_keeps_its_kl_penalty(guarded, estimator):
    rollout = make_rollout(EQUAL)
    _, ours = estimate(guarded, rollout, estimator, policy_loss="stare")
    penalty = (-0.1 * rollout["kl"]).flip(-1).cumsum(-1).flip(-1)
    torch.testing.assert_close(ours["advantages"][:4], penalty[:4])


def test_length_penalties_come_before_the_question_whether_rewards_are_equal(guarded):
    rollout = make_rollout(EQUAL)
    rollout["truncated"] = torch.arange(PROMPTS * K) == 0
    _, ours = estimate(guarded, rollout, "group_norm", policy_loss="stare", stop_properly_penalty_coef=0.5)
    assert ours["info stare/zero_variance_groups"].eq(1).all()


@EVERY_ESTIMATOR
def test_groups_of_equal_rewards_are_counted_and_single_responses_are_no_group(guarded, estimator):
    where = {"sizes": [3, 5, 4], "order": [7, 0, 11, 5, 2, 9, 4, 8, 1, 10, 3, 6], "policy_loss": "stare"}
    _, ours = estimate(guarded, make_rollout(EQUAL), estimator, **where)
    assert ours["info stare/zero_variance_groups"].eq(2).all()
    # Of one group two equal rewards are left, of another one reward, of the third none.
    _, ours = estimate(
        guarded, make_rollout({**EQUAL, **dict.fromkeys([0, 1, 4, 5, 6, 7, 8, 9, 10], NAN)}), estimator, **where
    )
    assert ours["info stare/zero_variance_groups"].eq(1).all()
    _, without = estimate(guarded, make_rollout(EQUAL), estimator)
    assert "info stare/zero_variance_groups" not in without
    if estimator in UNGROUPED:
        _, single = estimate(guarded, make_rollout(EQUAL), estimator, k=1, policy_loss="stare")
        assert single["info stare/zero_variance_groups"].eq(0).all()


@pytest.mark.parametrize("estimator", UNGROUPED)
@EVERY_OPTION
def test_estimators_without_groups_are_openrlhfs_there_too(openrlhf, guarded, estimator, options):
    _, ours = estimate(guarded, make_rollout(EQUAL), estimator, policy_loss="stare", **options)
    _, theirs = estimate(openrlhf, make_rollout(EQUAL), estimator, **options)
    assert torch.equal(ours["advantages"], theirs["advantages"])


# SR-GRPO


@EVERY_OPTION
@pytest.mark.parametrize("loss", ["openrlhf", "stare"])
@pytest.mark.parametrize(
    "lost", [{}, UNEVEN, {**UNEVEN, 0: NAN, 1: NAN, 2: NAN, 3: NAN}], ids=["none", "some", "group"]
)
def test_sr_grpo_spreads_the_soft_reward_of_a_group_with_openrlhfs_penalties(openrlhf, guarded, options, loss, lost):
    rollout, kept = make_rollout(lost), kept_of(lost)
    _, ours = estimate(guarded, rollout, "sr_grpo", tau=0.3, policy_loss=loss, **options)
    # The rewards after OpenRLHF's length penalties; of one group at a time, without the lost.
    penalised = estimate(openrlhf, only(rollout, kept), "reinforce", k=1, **options)[1]["rewards"]
    soft = torch.empty(len(kept))
    for prompt in range(PROMPTS):
        rows = torch.tensor([response // K == prompt for response in kept])
        if rows.any():
            soft[rows] = soft_advantage(penalised[rows].unsqueeze(0), tau=0.3).squeeze(0)
    low, high = options.get("clip_range", (-INF, INF))
    mask, kl = rollout["action_mask"][kept], rollout["kl"][kept]
    after = mask.flip(-1).cumsum(-1).flip(-1).bool()  # positions up to the last token
    expected = soft.clamp(low, high).unsqueeze(-1) * after - 0.1 * kl.flip(-1).cumsum(-1).flip(-1)
    torch.testing.assert_close(ours["advantages"][kept][mask.bool()], expected[mask.bool()])
    assert_lost(ours, rollout, lost)
    # One number for the whole rollout, so that OpenRLHF's mean over the responses is that number.
    for name, value in (("mean", soft.mean()), ("std", soft.std(correction=0))):
        torch.testing.assert_close(ours[f"info soft_advantage_{name}"], value.expand(PROMPTS * K))


def test_sr_grpo_pushes_up_every_response_of_a_solved_prompt(guarded):
    rollout = eight_equal(1.0)
    _, ours = estimate(guarded, rollout, "sr_grpo", k=8, policy_loss="stare")
    assert ours["advantages"][:8][rollout["action_mask"][:8].bool()].eq(1).all()
    assert ours["info stare/zero_variance_groups"].eq(1).all()


def test_sr_grpo_takes_micro_batches_in_any_order_and_logs_openrlhfs_std(openrlhf, guarded):
    rollout = make_rollout()
    _, in_order = estimate(guarded, rollout, "sr_grpo")
    order = [7, 0, 11, 5, 2, 9, 4, 8, 1, 10, 3, 6]
    _, shuffled = estimate(guarded, rollout, "sr_grpo", sizes=[1, 5, 2, 4], order=order)
    assert in_order.keys() == shuffled.keys()
    for name, values in in_order.items():
        assert torch.equal(shuffled[name], values)
    _, theirs = estimate(openrlhf, rollout, "dr_grpo")
    assert torch.equal(in_order["info group_reward_std"], theirs["info group_reward_std"])
    assert torch.equal(in_order["rewards"], rollout["rewards"])


def test_every_ray_worker_gets_the_changes():
    """`install` is Ray's worker_process_setup_hook; it was called at the top of this file."""
    from openrlhf.trainer.ppo_utils import experience_maker, samples_generator

    for function in (
        experience_maker.RemoteExperienceMaker.compute_advantages_and_returns,
        samples_generator.SamplesGenerator.generate_samples,
    ):
        assert function.__module__ == guards.__name__
