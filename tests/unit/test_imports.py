"""What an import costs: the mathematics needs torch alone, and every Ray worker and vLLM process starts cheaply."""

import json
import os
import pkgutil
import subprocess
import sys

import pytest

from openrlhf_stare import algorithms

HEAVY = {"ray", "openrlhf", "deepspeed", "vllm", "transformers"}
ALGORITHMS = [f"openrlhf_stare.algorithms.{module.name}" for module in pkgutil.iter_modules(algorithms.__path__)]
OURS = ("OPENRLHF_STARE_CPU", "DS_ACCELERATOR", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND")


def modules_after(code: str, **environment: str) -> set[str]:
    """What a fresh process has imported after the code."""
    code = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    inherited = {name: value for name, value in os.environ.items() if name not in OURS}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**inherited, **environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import openrlhf_stare; dir(openrlhf_stare)",
        "from openrlhf_stare import EntropyController, token_weights, surprisal_thresholds, soft_advantage",
        f"import {', '.join(ALGORITHMS)}",
        "import openrlhf_stare.driver.checks, openrlhf_stare.driver.resources, openrlhf_stare.vllm_plugin\n"
        "import openrlhf_stare.train_ray",
    ],
    ids=["the package", "the public names", "the algorithms", "the command's parts"],
)
def test_none_of_the_stack_is_imported(code):
    assert HEAVY.isdisjoint(modules_after(code))


def test_the_package_and_the_options_need_not_even_torch():
    assert "torch" not in modules_after("import openrlhf_stare")
    assert "torch" not in modules_after("from openrlhf_stare import EntropyControl, EntropyController, Strength")


def test_algorithms_are_found():
    assert "openrlhf_stare.algorithms.selection" in ALGORITHMS


def test_every_public_name_is_there():
    import openrlhf_stare

    for name in openrlhf_stare.__all__:
        assert getattr(openrlhf_stare, name).__name__ == name and name in dir(openrlhf_stare)


def test_an_unknown_name_is_an_attribute_error():
    import openrlhf_stare

    with pytest.raises(AttributeError, match="'openrlhf_stare' has no attribute 'StareLoss'"):
        getattr(openrlhf_stare, "StareLoss")  # noqa: B009


INSTALL = "from openrlhf_stare import worker; worker.install()"


def test_a_ray_worker_on_a_cpu_imports_nothing_of_the_stack_before_its_job_does():
    modules = modules_after(INSTALL, OPENRLHF_STARE_CPU="1")
    assert "openrlhf_stare.cpu" in modules
    assert HEAVY.isdisjoint(modules) and "torch" not in modules


def test_a_ray_worker_with_a_gpu_imports_nothing_of_the_cpu_runtime():
    modules = modules_after(INSTALL, OPENRLHF_STARE_CPU="0")
    assert not {name for name in modules if name.startswith("openrlhf_stare.cpu")}
    assert HEAVY.isdisjoint(modules) and "torch" not in modules


PLUGIN = "from openrlhf_stare import vllm_plugin; vllm_plugin.register()"


@pytest.mark.parametrize("environment", [{}, {"OPENRLHF_STARE_CPU": "0"}], ids=["no variable", "0"])
def test_vllms_plugin_does_nothing_for_others(environment):
    """Every vLLM process on the machine loads it."""
    plain = modules_after("import openrlhf_stare.vllm_plugin", **environment)
    assert modules_after(PLUGIN, **environment) == plain
    assert {name for name in plain if name.startswith("openrlhf")} == {"openrlhf_stare", "openrlhf_stare.vllm_plugin"}


def test_vllms_plugin_announces_the_cpu_runtime_in_our_jobs():
    announced = "from openrlhf_stare.when_imported import _finder as finder"
    announced += "; assert 'vllm.v1.worker.cpu_worker' in finder.patches"
    modules = modules_after(f"{PLUGIN}; {announced}", OPENRLHF_STARE_CPU="1")
    assert "openrlhf_stare.cpu" in modules
    assert HEAVY.isdisjoint(modules)


def test_vllm_finds_the_plugin():
    from importlib.metadata import entry_points

    (plugin,) = (point for point in entry_points(group="vllm.general_plugins") if point.name == "openrlhf_stare")
    assert plugin.value == "openrlhf_stare.vllm_plugin:register"


def test_the_workers_hook_is_named_by_its_place():
    from openrlhf_stare import worker

    module, function = worker.HOOK.rsplit(".", 1)
    assert getattr(sys.modules[module], function) is worker.install
