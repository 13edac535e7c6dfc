"""What a job needs of the cluster: a table, and OpenRLHF's own placement code run against a Ray that only counts."""

import ast
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from openrlhf_stare.driver import resources
from openrlhf_stare.options import UsageError
from openrlhf_stare.rules import refuse

OPENRLHF = Path(importlib.util.find_spec("openrlhf").submodule_search_locations[0])


class Nested(SimpleNamespace):
    """As OpenRLHF nests its flags; a name that a test does not give has no bearing on the placement."""

    def __getattr__(self, name):
        return None


def arguments(**given) -> Nested:
    """The values that `train` gets, dots written as two underscores: two ranks, one engine, nothing colocated."""
    values = {
        **{f"{model}__num_nodes": 1 for model in ("actor", "ref", "critic", "reward")},
        **{f"{model}__num_gpus_per_node": 2 for model in ("actor", "ref", "critic", "reward")},
        "vllm__num_engines": 1,
        "vllm__tensor_parallel_size": 1,
        "train__seed": 0,
        "train__batch_size": 128,
        "train__micro_batch_size": 4,
        "train__dynamic_batch_enable": False,
        "train__colocate_all": False,
        "train__colocate_actor_ref": False,
        "train__colocate_critic_reward": False,
        "train__async_enable": False,
        "algo__kl__init_coef": 0.0,
        "algo__advantage__is_correction_level": "off",
        "critic__model_name_or_path": None,
        "reward__remote_url": ["reward.py"],
        "ds__ring_attn_size": 1,
        "ds__tensor_parallel_size": 1,
        "data__max_images_per_prompt": 0,
        **given,
    }
    root = Nested()
    for name, value in values.items():
        *path, last = name.split("__")
        node = root
        for part in path:
            if part not in vars(node):
                setattr(node, part, Nested())
            node = getattr(node, part)
        setattr(node, last, value)
    return root


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"critic__model_name_or_path": "critic", "critic__num_gpus_per_node": 8}, "critic"),
        ({"reward__remote_url": None, "reward__num_nodes": 2}, "reward"),
        ({"critic__model_name_or_path": "critic"}, None),
        ({"critic__num_gpus_per_node": 8, "reward__num_gpus_per_node": 8}, None),  # and no such models
    ],
)
def test_models_that_share_the_actors_gpus_have_no_more_ranks(given, refused):
    refuse(resources.more_ranks_than_gpus(arguments(**given)))  # nothing is shared
    args = arguments(**given, train__colocate_all=True)
    if refused is None:
        refuse(resources.more_ranks_than_gpus(args))
        return
    with pytest.raises(UsageError, match=f"{refused}.num_gpus_per_node .* share the actor's 2 GPUs: give it 2 ranks"):
        refuse(resources.more_ranks_than_gpus(args))


CRITIC = {"algo__advantage__estimator": "gae", "critic__model_name_or_path": "critic"}
EVERYTHING = {"algo__kl__init_coef": 0.01, **CRITIC, "reward__remote_url": None}
PAIRS = {"train__colocate_actor_ref": True, "train__colocate_critic_reward": True}
TABLE = [
    ("the quickstart: two ranks and an engine", {}, 3),
    ("one GPU for each, where no placement group is made", {"actor__num_gpus_per_node": 1}, 2),
    ("two nodes", {"actor__num_nodes": 2, "actor__num_gpus_per_node": 8}, 17),
    ("no engine", {"vllm__num_engines": None}, 2),
    ("engines that span GPUs", {"vllm__num_engines": 2, "vllm__tensor_parallel_size": 4}, 10),
    ("a reference model", {"algo__kl__init_coef": 0.01}, 5),
    ("a reference model on the actor's GPUs", {"algo__kl__init_coef": 0.01, "train__colocate_actor_ref": True}, 3),
    ("a critic", {"critic__model_name_or_path": "critic"}, 5),
    ("a reward model", {"reward__remote_url": None}, 5),
    ("everything, separate", EVERYTHING, 9),
    ("everything, in pairs", {**EVERYTHING, **PAIRS}, 5),
    ("everything on the actor's GPUs", {**EVERYTHING, "train__colocate_all": True, "vllm__num_engines": 2}, 2),
    ("the same, asynchronous", {**EVERYTHING, "train__colocate_all": True, "train__async_enable": True}, 3),
    (
        "colocate_critic_reward takes that pair out of colocate_all",
        {**EVERYTHING, "train__colocate_all": True, "train__colocate_critic_reward": True, "vllm__num_engines": 2},
        4,
    ),
    ("colocate_critic_reward without a critic changes nothing", {"train__colocate_critic_reward": True}, 3),
    ("ring attention divides the ranks, it adds none", {"ds__ring_attn_size": 2}, 3),
]


@pytest.mark.parametrize("given, gpus", [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_gpus_and_cpus_of_a_job(given, gpus):
    needs = resources.required(arguments(**given))
    assert (needs.gpus, needs.cpus) == (gpus, gpus + 1)
    assert sum(count for _, count in needs.parts) == gpus


# Against OpenRLHF's own code


def statements(file: str, *names: str) -> list[ast.stmt]:
    tree = ast.parse((OPENRLHF / file).read_text())
    return [node for node in tree.body if getattr(node, "name", None) in names]


def placement_code():
    """`train` up to where it chooses the trainer, with the two places in which it asks Ray for GPUs."""
    (train,) = statements("cli/train_ppo_ray.py", "train")
    (end,) = (i for i, node in enumerate(train.body) if any(isinstance(n, ast.ImportFrom) for n in ast.walk(node)))
    train.body = train.body[:end]
    group = statements("trainer/ray/launcher.py", "RayActorGroup")
    engines = statements("trainer/ray/vllm_engine.py", "create_vllm_engines")
    # Annotations are left unevaluated, since what they name is not here.
    future = ast.parse("from __future__ import annotations").body
    return compile(ast.Module([*future, *group, *engines, train], type_ignores=[]), "openrlhf", "exec")


PLACEMENT_CODE = placement_code()


class CountingRay:
    """Stands for Ray where OpenRLHF asks for resources: bundles, and actors outside any placement group."""

    def __init__(self):
        self.gpus, self.cpus = 0.0, 0.0

    def placement_group(self, bundles, strategy):
        self.gpus += sum(bundle["GPU"] for bundle in bundles)
        self.cpus += sum(bundle["CPU"] for bundle in bundles)
        return MagicMock(bundle_count=len(bundles))

    def actor_type(self):
        def options(num_gpus, num_cpus, resources=None, scheduling_strategy=None):
            if scheduling_strategy is None:
                self.gpus, self.cpus = self.gpus + num_gpus, self.cpus + num_cpus
            return MagicMock()

        return SimpleNamespace(options=options)

    def place(self, args):
        names = {
            "ray": SimpleNamespace(is_initialized=lambda: True, get=lambda _: ("address", 1)),
            "get_strategy": MagicMock(),
            "placement_group": self.placement_group,
            "PlacementGroupSchedulingStrategy": SimpleNamespace,
            "get_bundle_indices": lambda group, index, length: [index * length + i for i in range(length)],
        }
        for actor in ("PolicyModelActor", "ReferenceModelActor", "CriticModelActor", "RewardModelActor"):
            names[actor] = self.actor_type()
        names["RolloutRayActor"] = self.actor_type()
        exec(PLACEMENT_CODE, names)
        names["train"](args)


@st.composite
def jobs(draw):
    # Models that share GPUs must be of one size, so half of the jobs have one size throughout.
    nodes, gpus = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    one_size = draw(st.booleans())
    size = st.tuples(st.just(nodes), st.just(gpus)) if one_size else st.tuples(st.integers(1, 3), st.integers(1, 3))
    sizes = {}
    for model in ("actor", "ref", "critic", "reward"):
        sizes[f"{model}__num_nodes"], sizes[f"{model}__num_gpus_per_node"] = draw(size)
    sizes["vllm__num_engines"], sizes["vllm__tensor_parallel_size"] = draw(size)
    switches = ("colocate_all", "colocate_actor_ref", "colocate_critic_reward", "async_enable")
    return arguments(
        **sizes,
        **{f"train__{name}": draw(st.booleans()) for name in switches},
        algo__kl__init_coef=draw(st.sampled_from([0.0, 0.01])),
        critic__model_name_or_path=draw(st.sampled_from([None, "critic"])),
        reward__remote_url=draw(st.sampled_from([None, ["reward.py"], "agent"])),
    )


@settings(deadline=None)
@given(jobs())
def test_the_sum_is_what_openrlhf_asks_ray_for(args):
    ray = CountingRay()
    try:
        ray.place(args)
    except AssertionError:
        assume(False)  # sizes that OpenRLHF itself refuses to colocate
    needs = resources.required(args)
    assert (needs.gpus, needs.cpus - 1) == (ray.gpus, ray.cpus)


# The sentence


def test_a_gpu_without_a_cpu_on_its_node_is_none():
    """Ray would wait for ever for a place for both."""
    head, node = {"CPU": 16.0}, {"GPU": 8.0, "CPU": 2.0}
    with pytest.raises(UsageError, match="^the job needs 3 GPUs .*, and the nodes have 2 such pairs: start"):
        refuse(resources.unplaceable(arguments(), [head, node]))
    refuse(resources.unplaceable(arguments(), [head, node, {"GPU": 1.0, "CPU": 1.0}]))


@pytest.mark.parametrize("available", [{"GPU": 3.0, "CPU": 4.0}, {"GPU": 8.0, "CPU": 64.0, "memory": 1e9}])
def test_a_cluster_that_is_large_enough_is_no_matter(available):
    refuse(resources.too_small(arguments(), available))


@pytest.mark.parametrize(
    "available, has",
    [
        ({"GPU": 2.0, "CPU": 64.0}, "2 GPUs and 64 CPUs"),
        ({"GPU": 3.0, "CPU": 3.0}, "3 GPUs and 3 CPUs"),  # the trainer would never be placed
        ({"CPU": 8.0}, "0 GPUs and 8 CPUs"),  # Ray names no resource that it has none of
        ({}, "0 GPUs and 0 CPUs"),
    ],
)
def test_a_cluster_that_is_too_small_is_named_with_the_needs_and_the_line_that_would_do(available, has):
    with pytest.raises(UsageError) as caught:
        refuse(resources.too_small(arguments(), available))
    sentence = str(caught.value)
    assert f"has {has}" in sentence
    assert "3 GPUs (2 for the actor (" in sentence and "1 for the vLLM engines (" in sentence
    assert "--actor.num_gpus_per_node 2" in sentence and "--vllm.num_engines 1" in sentence
    assert "4 CPUs" in sentence
    assert "`ray start --head --num-gpus=3 --num-cpus=4`" in sentence
    assert "\n" not in sentence


# The batch


EIGHT = {f"{model}__num_gpus_per_node": 8 for model in ("actor", "critic", "ref", "reward")}


@pytest.mark.parametrize(
    "given",
    [
        EVERYTHING,
        {**EVERYTHING, **EIGHT},
        {"train__micro_batch_size": 64},
        {**EIGHT, "ds__ring_attn_size": 4, "train__micro_batch_size": 64},
        # No reference model, critic or reward model is made, whatever their sizes are.
        {**EIGHT, "actor__num_gpus_per_node": 2, "train__micro_batch_size": 64},
        {"train__dynamic_batch_enable": True, "train__micro_batch_size": 48},
    ],
)
def test_a_batch_that_the_ranks_share_is_no_matter(given):
    refuse(resources.uneven_batches(arguments(**given)))


@pytest.mark.parametrize(
    "given, model, ranks, remedy",
    [
        ({"actor__num_gpus_per_node": 3}, "actor", 3, "a multiple of 12"),
        ({**EVERYTHING, "critic__num_gpus_per_node": 64}, "critic", 64, "a multiple of 256"),
        ({**EVERYTHING, "ref__num_nodes": 5}, "ref", 10, "a multiple of 40"),
        # What does not train has no dynamic batches.
        ({**EVERYTHING, "ref__num_nodes": 5, "train__dynamic_batch_enable": True}, "ref", 10, "a multiple of 40"),
        ({**EVERYTHING, "reward__num_gpus_per_node": 24, "ds__ring_attn_size": 8}, "actor", 0, "more ranks"),
        ({"reward__remote_url": None, "reward__num_gpus_per_node": 3}, "reward", 3, "a multiple of 12"),
    ],
)
def test_a_batch_that_they_cannot_share_names_the_flags_and_the_remedy(given, model, ranks, remedy):
    with pytest.raises(UsageError) as caught:
        refuse(resources.uneven_batches(arguments(**given)))
    sentence = str(caught.value)
    assert "--train.batch_size 128" in sentence and "--train.micro_batch_size 4" in sentence
    assert f"{ranks} data-parallel ranks of" in sentence and f"--{model}.num_gpus_per_node" in sentence
    assert remedy in sentence and "\n" not in sentence
