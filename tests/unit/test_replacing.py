"""The one code that replaces something of theirs: what it puts where, and what it refuses."""

import pkgutil
import subprocess
import sys

import pytest

from openrlhf_stare import replacing, worker
from openrlhf_stare.substitutions import COMPILER, FLASH_ATTN, GPU, TABLE, Substitution

worker.install()


def in_a_process(code: str) -> list[str]:
    code = f"from openrlhf_stare import worker, replacing\nworker.install()\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


ALWAYS = [row for row in TABLE if row.name and not row.during]
STANDING = """
import importlib, inspect
for missing in {{row.missing for row in replacing.TABLE}}:
    replacing.announce(missing)
for module, name in {places}:
    owner = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    ours = inspect.getattr_static(owner, last)
    ours = getattr(ours, "__func__", ours)
    ours = replacing.plain_class(ours) if hasattr(ours, "__ray_metadata__") else ours
    print(module + "." + name, ours.__module__, getattr(ours, "__qualname__", "").partition(".")[0])
"""


def test_everything_that_is_to_stand_there_always_stands_there_once_its_module_is_imported():
    lines = in_a_process(STANDING.format(places=[(row.module, row.name) for row in ALWAYS]))
    found = dict(
        line.split(" ", 1) for line in lines if line.startswith(("openrlhf.", "torch.", "deepspeed.", "vllm."))
    )
    assert found.keys() == {row.place for row in ALWAYS}
    last = {row.place: row for row in ALWAYS}  # of two for a place, the second is on top of the first
    for place, ours in found.items():
        module, _, name = last[place].by.rpartition(".")
        if place.endswith("_ds_config"):  # functools.wraps
            continue
        assert ours == f"{module} {name}", place


OURS_FIRST = """
from openrlhf_stare.rollout.samples_generator import StareSamplesGenerator
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
assert SamplesGenerator is StareSamplesGenerator
assert [base.__module__.split(".")[0] for base in SamplesGenerator.__mro__[:2]] == ["openrlhf_stare", "openrlhf"]
from openrlhf_stare.rollout import engine
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
print(*[base.__module__ for base in replacing.plain_class(RolloutRayActor).__mro__[:2]])
"""


def test_ours_may_be_imported_first_and_the_table_s_order_holds():
    assert in_a_process(OURS_FIRST)[-1] == "openrlhf_stare.cpu.engine openrlhf_stare.rollout.engine"


def test_the_table_s_order_holds_in_whatever_order_its_parts_are_announced():
    """A public name such as `StarePolicyLoss` announces the CPU's rows alone."""
    code = f"from openrlhf_stare import worker, replacing, StarePolicyLoss\nworker.install()\n{OURS_FIRST}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "openrlhf_stare.cpu.engine openrlhf_stare.rollout.engine"


def test_the_engine_of_a_cpu_is_on_top_of_ours_on_top_of_openrlhfs():
    from openrlhf.trainer.ray.vllm_engine import RolloutRayActor

    classes = replacing.plain_class(RolloutRayActor).__mro__
    assert [base.__module__ for base in classes[:3]] == [
        "openrlhf_stare.cpu.engine",
        "openrlhf_stare.rollout.engine",
        "openrlhf.trainer.ray.vllm_engine",
    ]
    assert RolloutRayActor.__ray_metadata__.actor_creation_function_descriptor.class_name == "RolloutRayActor"


def test_an_actor_class_keeps_openrlhfs_options():
    from openrlhf.trainer.ray.ppo_actor import PolicyModelActor

    assert PolicyModelActor._default_options == {"num_gpus": 1}
    assert replacing.plain_class(PolicyModelActor).__name__ == "StarePolicyActor"


def test_for_a_while_means_for_a_while():
    import openrlhf.models.actor as actor

    theirs = actor.compute_entropy
    with pytest.raises(ZeroDivisionError), replacing.replaced("openrlhf.models.actor.compute_entropy", len):
        assert actor.compute_entropy is len
        raise ZeroDivisionError
    assert actor.compute_entropy is theirs


@pytest.mark.parametrize(
    "place",
    ["openrlhf.models.actor.Actor", "openrlhf.trainer.ray.ppo_actor.PolicyModelActor", "no.such.place"],
    ids=["not in the table", "to stand there always", "nowhere"],
)
def test_a_place_that_the_table_does_not_give_for_a_while_is_refused(place):
    with pytest.raises(
        LookupError, match=f"^'?no row of openrlhf_stare/substitutions.py replaces {place} for a while"
    ):
        with replacing.replaced(place, None):
            pass


def test_a_place_of_an_object_needs_the_object():
    place = "openrlhf.trainer.ray.ppo_actor.ActorPPOTrainer.args.actor.entropy_coef"
    with pytest.raises(LookupError), replacing.replaced(place, 0.5):
        pass
    args = type("Args", (), {"entropy_coef": None})()
    with replacing.replaced(place, 0.5, on=args):
        assert args.entropy_coef == 0.5
    assert args.entropy_coef is None


def test_every_row_says_what_breaks_and_every_one_of_ours_is_there():
    for row in TABLE:
        assert isinstance(row, Substitution) and row.without and row.where and "\n" not in row.without
        rooms = {"cpu": GPU, "without_flash_attn": FLASH_ATTN, "gpu": COMPILER}
        assert row.missing == rooms.get(row.by.split(".")[1])
        ours = pkgutil.resolve_name(row.by)
        assert callable(ours), row.by
