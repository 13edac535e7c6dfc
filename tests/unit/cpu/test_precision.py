"""Which type the models of a job compute in, on CPUs made believe."""

import pytest

from openrlhf_stare.cpu import precision
from openrlhf_stare.options import UsageError

BEFORE = "flags\t\t: fpu sse4_2 avx2 fma avx512f avx512_vnni"
CPUS = {
    "AVX2": (BEFORE, "float32"),
    "AVX512-BF16": (f"{BEFORE} avx512_bf16 vaes", "bfloat16"),
    "AMX": (f"{BEFORE} amx_tile amx_bf16", "bfloat16"),
    "AMX for integers only": (f"{BEFORE} amx_tile amx_int8", "float32"),
    "ARM": ("Features\t: fp asimd sve i8mm bf16", "bfloat16"),
    "ARM without": ("Features\t: fp asimd", "float32"),
    "named after it": (f"model name\t: a bf16 avx512_bf16 wonder\n{BEFORE}", "float32"),
}


@pytest.fixture
def cpu(monkeypatch, tmp_path):
    """Make believe that the CPU is another one, and that nothing is insisted on."""
    monkeypatch.delenv(precision.VARIABLE, raising=False)

    def made_of(flags: str) -> None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}\nprocessor\t: 1\n{flags}\n")
        monkeypatch.setattr(precision, "CPU_INFO", tmp_path / "cpuinfo")

    return made_of


@pytest.mark.parametrize(("flags", "expected"), CPUS.values(), ids=CPUS)
def test_float32_where_the_cpu_has_no_units_for_bfloat16(cpu, flags, expected):
    cpu(flags)
    assert precision.chosen() == expected
    if expected == "float32":
        assert "since this CPU has no units for bfloat16" in precision.sentence()


@pytest.mark.parametrize("insisted", ["float32", "bfloat16"])
@pytest.mark.parametrize("flags", [BEFORE, f"{BEFORE} avx512_bf16"])
def test_the_variable_insists_on_either(cpu, monkeypatch, flags, insisted):
    cpu(flags)
    monkeypatch.setenv(precision.VARIABLE, insisted)
    assert precision.chosen() == insisted


def test_another_type_is_refused(cpu, monkeypatch):
    cpu(BEFORE)
    monkeypatch.setenv(precision.VARIABLE, "fp16")
    with pytest.raises(UsageError, match="^OPENRLHF_STARE_CPU_DTYPE=fp16 is neither float32 nor bfloat16: set it"):
        precision.chosen()


def test_where_linux_does_not_tell_float32_is_safe(monkeypatch, tmp_path):
    monkeypatch.delenv(precision.VARIABLE, raising=False)
    monkeypatch.setattr(precision, "CPU_INFO", tmp_path / "not there")
    assert precision.chosen() == "float32"
