"""OpenRLHF's own advantage step on a fixed rollout, for what changes in it.

OpenRLHF's own module, into which the table puts our subclass, is compared with a copy of it that is loaded afresh.
"""

import importlib
import importlib.util
import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from openrlhf_stare import worker

worker.install()  # makes OpenRLHF importable where there is no GPU


def fresh_copy(name: str):
    """OpenRLHF's module, executed again under a name of its own, which none of our patches is announced for."""
    spec = importlib.util.spec_from_file_location(f"copy_of_{name}", importlib.util.find_spec(name).origin)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dealing_args(ranks=1, micro=1, k=1, prompts=4, train=8, dynamic=False, ring=1, tensor_parallel=1):
    return SimpleNamespace(
        actor=SimpleNamespace(num_nodes=ring, num_gpus_per_node=ranks * tensor_parallel),
        ds=SimpleNamespace(ring_attn_size=ring, tensor_parallel_size=tensor_parallel, zero_stage=3),
        rollout=SimpleNamespace(batch_size=prompts, n_samples_per_prompt=k, micro_batch_size=micro),
        train=SimpleNamespace(
            batch_size=train, micro_batch_size=1, dynamic_batch_enable=dynamic, agent_func_path=None
        ),
        algo=SimpleNamespace(advantage=SimpleNamespace(estimator="group_norm"), kl=SimpleNamespace(init_coef=0)),
        reward=SimpleNamespace(remote_url="reward.py"),
    )


GROUPED = ("group_norm", "rloo", "dr_grpo", "reinforce_baseline")
UNGROUPED = ("reinforce", "flash_reinforce", "gae")
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
UNEVEN = {5: NAN, 8: INF, 10: NAN}  # none of the first prompt, one of the second, two of the third


@pytest.fixture(scope="module")
def openrlhf():
    return fresh_copy("openrlhf.trainer.ppo_utils.experience_maker")


@pytest.fixture(scope="module")
def guarded():
    return importlib.import_module("openrlhf.trainer.ppo_utils.experience_maker")


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


def eight_equal(reward: float) -> dict[str, torch.Tensor]:
    """Eight responses to one prompt, then eight to another, with rewards that differ."""
    rollout = make_rollout()
    rollout = {name: torch.cat([tensor, tensor[:4]]) for name, tensor in rollout.items()}
    rollout["kl"].zero_()
    rollout["rewards"] = torch.tensor([reward] * 8 + [0.0, 1.0] * 4)
    return rollout


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
    stop_after=10,
    figures=None,
    **reward,
):
    """Run the module's advantage step on the responses, in micro-batches of `sizes` and in the given order.

    `figures` has further ones of each response.

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
        failed_rewards=SimpleNamespace(stop_after=stop_after),
    )
    groups = dict.fromkeys(("actor_model_group", "critic_model_group", "reward_model_group", "initial_model_group"))
    maker = module.RemoteExperienceMaker(
        **groups, kl_controller=SimpleNamespace(value=0.1), strategy=SimpleNamespace(args=args), tokenizer=None
    )
    count = len(rollout["rewards"])
    order = list(range(count)) if order is None else order
    bounds = list(itertools.accumulate(sizes or [count], initial=0))
    experiences = []
    for start, end in itertools.pairwise(bounds):
        index = order[start:end]
        tensors = {name: tensor[index].clone() for name, tensor in rollout.items()}
        info = {"reward": tensors["rewards"].clone(), "score": tensors["rewards"].clone()}
        info |= {name: tensor[index].clone() for name, tensor in (figures or {}).items()}
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
    """What a lost response looks like: no action token, its tokens counted, and nothing that is not finite."""
    rows = list(lost)
    assert results["action_mask"][rows].sum() == 0
    assert results["advantages"][rows].eq(0).all()
    assert results["info entropy/nonfinite_tokens"].eq(rollout["action_mask"][rows].sum()).all()
    for name in results:
        assert results[name].isfinite().all(), name
    kept = kept_of(lost)
    assert torch.equal(results["action_mask"][kept], rollout["action_mask"][kept])
