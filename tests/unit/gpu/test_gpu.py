"""What a GPU job does without: flash-attn, and a compiler for CUDA. Nothing here needs a GPU."""

import os
import re
import sysconfig
import warnings
from pathlib import Path

import pytest

from openrlhf_stare import gpu, runtime
from openrlhf_stare.driver import command, flags
from openrlhf_stare.gpu import compiler
from openrlhf_stare.gpu.adam import fused_torch_adam
from openrlhf_stare.options import UsageError
from openrlhf_stare.rules import refuse
from openrlhf_stare.substitutions import COMPILER, FLASH_ATTN, GPU

JOB = """--actor.model_name_or_path model --vllm.num_engines 1 --reward.remote_url reward.py
    --rollout.n_samples_per_prompt 2 --actor.num_gpus_per_node 2 --ds.param_dtype bf16 --algo.kl.init_coef 0""".split()


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch):
    """As a process of a GPU job is told; what it changes of this one is undone."""
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "0")
    for variable in (gpu.ADAM_VARIABLE, gpu.FLASHINFER, "PYTHONWARNINGS", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(variable, "")  # so that it is undone where there was none
        monkeypatch.delenv(variable)
    compiler.missing.cache_clear()
    with warnings.catch_warnings():
        yield
    compiler.missing.cache_clear()


@pytest.fixture
def flash_attn(monkeypatch, tmp_path):
    """An installed package of that name, to be found and not imported."""
    (tmp_path / "site/flash_attn").mkdir(parents=True)
    (tmp_path / "site/flash_attn/__init__.py").write_text("raise ImportError\n")
    monkeypatch.syspath_prepend(tmp_path / "site")


def rows() -> set[str | None]:
    return {row.missing for row in runtime.substitutions()}


def settled(*words: str):
    flat = flags.parse([*JOB, *words])
    return command.nested(flat).ds.attn_implementation, command.settle(flat)


def test_without_flash_attn_its_stand_ins_hold(monkeypatch):
    monkeypatch.setenv(gpu.ADAM_VARIABLE, "deepspeed")
    assert rows() == {None, FLASH_ATTN}
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "1")
    assert rows() == {None, GPU, FLASH_ATTN}


def test_a_cpu_has_the_fused_adam_if_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "1")
    assert gpu.ADAM_VARIABLE not in runtime.environment()
    monkeypatch.setenv(gpu.ADAM_VARIABLE, "torch")
    assert rows() == {None, GPU, FLASH_ATTN, COMPILER}
    assert runtime.environment()[gpu.ADAM_VARIABLE] == "torch"  # for all processes of the job


@pytest.mark.parametrize(("adam", "held"), [("torch", {None, COMPILER}), ("deepspeed", {None})])
def test_with_it_openrlhf_has_what_it_asks_for(monkeypatch, flash_attn, adam, held):
    monkeypatch.setenv(gpu.ADAM_VARIABLE, adam)
    assert rows() == held


@pytest.mark.parametrize(
    ("words", "attention"),
    [
        ([], "sdpa"),
        (["--ds.packing_samples"], "sdpa"),
        (["--train.dynamic_batch_enable", "--ds.attn_implementation", "eager"], "eager"),
        (["--ds.packing_samples", "--ds.attn_implementation", "sdpa"], "sdpa"),
        (["--ds.packing_samples", "--ds.attn_implementation", "flash_attention_2"], "sdpa"),
        (["--ds.packing_samples", "--ds.attn_implementation", "kernels-community/x"], "kernels-community/x"),
        (["--ds.attn_implementation", "flash_attention_3"], "flash_attention_3"),
    ],
)
def test_attention_is_the_users_if_it_can_be_and_torchs_otherwise(monkeypatch, capsys, words, attention):
    monkeypatch.setenv(gpu.ADAM_VARIABLE, "deepspeed")
    asked, args = settled(*words)
    capsys.readouterr()
    runtime.set_arguments(args, attention=asked)
    assert args.ds.attn_implementation == attention
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"openrlhf-stare: flash_attn is not installed, so attention is {attention}, slower on long")


def test_with_flash_attn_attention_is_as_openrlhf_has_it(monkeypatch, capsys, flash_attn):
    monkeypatch.setenv(gpu.ADAM_VARIABLE, "deepspeed")
    asked, args = settled("--ds.packing_samples", "--ds.attn_implementation", "sdpa")
    capsys.readouterr()
    runtime.set_arguments(args, attention=asked)
    assert args.ds.attn_implementation == "flash_attention_2" and capsys.readouterr().err == ""


def test_ring_attention_needs_flash_attn(flash_attn, monkeypatch):
    _, args = settled("--ds.ring_attn_size", "2", "--ds.packing_samples")
    refuse(runtime.cannot_work_here(args))
    monkeypatch.undo()
    monkeypatch.setenv("OPENRLHF_STARE_CPU", "0")
    with pytest.raises(UsageError, match="^--ds.ring_attn_size 2 needs flash_attn, which is not installed: use 1, or"):
        refuse(runtime.cannot_work_here(args))


# ── the compiler ──


@pytest.fixture
def toolkit(monkeypatch, tmp_path) -> Path:
    """A machine with all that DeepSpeed needs to compile, as stand-ins: torch's CUDA, nvcc, g++, ninja, Python.h."""
    programs, home, include = (tmp_path / name for name in ("programs", "cuda", "python"))
    for folder in (programs, home / "bin", home / "include", include):
        folder.mkdir(parents=True)
    write_nvcc(home / "bin/nvcc", "13.0")
    for header in compiler.HEADERS:
        (home / "include" / header).touch()
    (include / "Python.h").touch()
    for name in ("g++", "ninja"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    where = {"scripts": str(tmp_path / "scripts"), "include": str(include)}
    monkeypatch.setattr(sysconfig, "get_path", where.get)
    monkeypatch.setattr(compiler, "cuda_of_torch", lambda: "13.0")
    monkeypatch.setenv("PATH", f"{programs}:/no/such/folder")
    monkeypatch.setenv("CUDA_HOME", str(home))
    for name in ("CXX", "TORCH_CUDA_ARCH_LIST"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write_nvcc(path: Path, version: str) -> None:
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.88'\n")
    path.chmod(0o755)


def test_a_machine_with_everything_compiles_deepspeeds_adam(toolkit, capsys, flash_attn):
    assert compiler.missing() is None
    assert runtime.environment()[gpu.ADAM_VARIABLE] == "deepspeed" and rows() == {None}


@pytest.mark.parametrize(
    ("lost", "clause"),
    [
        ("cuda/bin/nvcc", r"there is no CUDA 13.0 toolkit \(.*/cuda/bin/nvcc does not run\)"),
        ("cuda/include/cuda_runtime.h", r".*/cuda/include has no cuda_runtime.h"),
        ("cuda/include/cusparse.h", r".*/cuda/include has no cusparse.h"),
        ("programs/g++", r"a C\+\+ compiler is not on the PATH"),
        ("programs/ninja", "ninja is not on the PATH"),
        ("python/Python.h", r"Python's headers \(Python.h\) are not installed"),
    ],
)
def test_what_is_missing_is_named_and_torchs_adam_taken(toolkit, capsys, lost, clause):
    (toolkit / lost).unlink()
    assert runtime.environment()[gpu.ADAM_VARIABLE] == "torch" and COMPILER in rows()
    asked, args = settled()
    capsys.readouterr()
    runtime.set_arguments(args, attention=asked)
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(f"openrlhf-stare: the optimizer is torch's fused Adam, .* DeepSpeed's, since {clause}", said)


@pytest.mark.parametrize(
    ("architectures", "read"),
    [("9.0", True), ("8.0;9.0+PTX", True), ("8.0 9.0", True), ("", True), ("9.0a", False), ("8.0;Hopper", False)],
)
def test_architectures_that_deepspeed_cannot_read(toolkit, monkeypatch, architectures, read):
    """Of 9.0a, on an H100 whose image had set it, DeepSpeed said: invalid literal for int() with base 10: '0a'."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", architectures)
    why = compiler.missing()
    assert why is None if read else why.startswith(f"DeepSpeed cannot read TORCH_CUDA_ARCH_LIST={architectures}, only")


def test_without_a_compiler_vllm_takes_the_sampler_that_needs_none(toolkit, monkeypatch):
    assert gpu.FLASHINFER not in runtime.environment()
    (toolkit / "cuda/bin/nvcc").unlink()
    compiler.missing.cache_clear()
    assert runtime.environment()[gpu.FLASHINFER] == "0"
    monkeypatch.setenv(gpu.FLASHINFER, "1")
    assert runtime.environment()[gpu.FLASHINFER] == "1"


def test_a_torch_for_the_cpu_has_no_toolkit(toolkit, monkeypatch):
    monkeypatch.setattr(compiler, "cuda_of_torch", lambda: None)
    assert compiler.missing() == "torch is made for no CUDA"


@pytest.mark.parametrize("version", ["12.9", "13.1"])
def test_the_toolkit_has_to_be_of_torchs_cuda(toolkit, version):
    """Of 13.1 beside a torch for 13.0 DeepSpeed says CUDAMismatchException."""
    write_nvcc(toolkit / "cuda/bin/nvcc", version)
    assert compiler.missing() == f"{toolkit}/cuda/bin/nvcc is of CUDA {version}, and torch of CUDA 13.0"


def test_the_toolkit_is_looked_for_as_torch_does(toolkit, monkeypatch):
    monkeypatch.delenv("CUDA_HOME")
    assert compiler.cuda_home() == Path("/usr/local/cuda")
    monkeypatch.setenv("PATH", f"{toolkit}/cuda/bin:{os.environ['PATH']}")
    assert compiler.cuda_home() == toolkit / "cuda"
    monkeypatch.setenv("CUDA_PATH", "/other")
    assert compiler.cuda_home() == Path("/other")


def test_what_the_user_set_wins(toolkit, monkeypatch, capsys, flash_attn):
    monkeypatch.setenv(gpu.ADAM_VARIABLE, "torch")
    assert runtime.environment()[gpu.ADAM_VARIABLE] == "torch"
    asked, args = settled()
    capsys.readouterr()
    runtime.set_arguments(args, attention=asked)
    assert "torch's fused Adam, which takes the same steps as DeepSpeed's, as OPENRLHF_STARE_ADAM says" in (
        capsys.readouterr().err
    )


def test_torchs_adam_is_asked_for_in_deepspeeds_words():
    def get_config(optim_config=None):
        return {"zero_optimization": {}} | ({"optimizer": optim_config} if optim_config else {})

    config = fused_torch_adam(get_config)
    assert config() == get_config()  # while a model is loaded there is none yet
    adam = config(optim_config={"type": "Adam", "params": {"lr": 1e-3}})
    assert adam["optimizer"]["params"] == {"lr": 1e-3, "torch_adam": True, "fused": True}
    assert adam["zero_force_ds_cpu_optimizer"] is False
    muon = config(optim_config={"type": "Muon", "params": {"muon_lr": 1e-3}})
    assert muon["optimizer"]["params"] == {"muon_lr": 1e-3, "torch_adam": True}


# ── every process ──


def test_every_process_finds_the_environments_programs_and_is_quiet(monkeypatch, toolkit):
    runtime.prepare_process()
    runtime.prepare_process()
    assert os.environ["PATH"].split(":")[0] == str(toolkit / "scripts")
    assert os.environ["PATH"].count("scripts") == 1
    assert os.environ["PYTHONWARNINGS"] == "ignore:The pynvml package is deprecated:FutureWarning"
    with warnings.catch_warnings(record=True) as heard:
        warnings.warn("The pynvml package is deprecated. Please install another.", FutureWarning, stacklevel=1)
        warnings.warn("Another thing is deprecated.", FutureWarning, stacklevel=1)
    assert [str(warning.message) for warning in heard] == ["Another thing is deprecated."]


def test_warnings_that_the_user_asked_for_stay(monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "error::UserWarning")
    assert gpu.environment()["PYTHONWARNINGS"] == (
        "ignore:The pynvml package is deprecated:FutureWarning,error::UserWarning"
    )
