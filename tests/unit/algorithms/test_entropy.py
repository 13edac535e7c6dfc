"""The entropy of softmax(logits), exact, a chunk of tokens at a time."""

import math

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from openrlhf_stare.algorithms.entropy import chunked_entropy


def definition(logits: torch.Tensor) -> torch.Tensor:
    x = logits.double()
    return torch.logsumexp(x, dim=-1) - (x.softmax(dim=-1) * x).sum(dim=-1)


@pytest.mark.parametrize("shape", [(7,), (5, 11), (2, 3, 50), (0, 4), (2, 0, 4), (3, 32000), (1, 1)])
@pytest.mark.parametrize("chunk_tokens", [None, 1, 2, 1000])
def test_equals_the_definition(shape, chunk_tokens):
    torch.manual_seed(0)
    logits = 3 * torch.randn(shape)
    entropy = chunked_entropy(logits, chunk_tokens)
    assert entropy.shape == shape[:-1] and entropy.dtype == torch.float32
    torch.testing.assert_close(entropy.double(), definition(logits), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_computed_in_float32(dtype):
    logits = torch.randn(4, 1000).to(dtype)
    torch.testing.assert_close(chunked_entropy(logits).double(), definition(logits), atol=1e-5, rtol=0)


def test_known_distributions():
    assert chunked_entropy(torch.zeros(8)).item() == pytest.approx(math.log(8), abs=1e-6)
    assert chunked_entropy(torch.tensor([1000.0, 0.0, 0.0])).item() == 0.0
    half = torch.tensor([5.0, -math.inf, 5.0, -math.inf])  # a masked vocabulary
    assert chunked_entropy(half).item() == pytest.approx(math.log(2), abs=1e-6)
    assert chunked_entropy(torch.tensor([-math.inf, 3.0])).item() == 0.0


def test_the_entropy_is_never_negative():
    assert (chunked_entropy(20 * torch.randn(200, 500)) >= 0).all()


def test_nan_stays_with_its_token():
    logits = torch.zeros(4, 8)
    logits[1, 3] = math.nan
    logits[2] = -math.inf
    assert chunked_entropy(logits).isnan().tolist() == [False, True, True, False]


def test_the_logits_are_read_only():
    logits = torch.randn(3, 5)
    before = logits.clone()
    chunked_entropy(logits)
    assert torch.equal(logits, before)


def test_what_cannot_be_answered_is_refused():
    with pytest.raises(ValueError, match="V at least 1"):
        chunked_entropy(torch.empty(3, 0))
    with pytest.raises(ValueError, match="chunk_tokens 0 is below 1"):
        chunked_entropy(torch.zeros(3, 2), chunk_tokens=0)
    logits = torch.zeros(3, 2, requires_grad=True)
    with pytest.raises(ValueError, match="detach"):
        chunked_entropy(logits)
    with torch.no_grad():
        assert not chunked_entropy(logits).requires_grad


def peak_bytes(call) -> int:
    """The largest sum of CPU bytes that torch held at once during `call`, beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    # events() of the profiler leaves out what an operator allocates inside; its raw results have every allocation.
    raw = profiled.profiler.kineto_results.events()
    moves = sorted((event.start_ns(), event.nbytes()) for event in raw if event.name() == "[memory]")
    held = peak = 0
    for _, bytes_moved in moves:
        held += bytes_moved
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("view", ["contiguous", "all but the last token", "bfloat16"])
def test_no_second_tensor_of_the_size_of_the_logits(view):
    logits = torch.randn(4, 257, 8192)  # 32 MiB
    if view == "all but the last token":
        logits = logits[:, :-1]
    elif view == "bfloat16":
        logits = logits.bfloat16()
    assert peak_bytes(lambda: logits.float() + logits) > 30 * 2**20  # so the measurement sees such a tensor
    assert peak_bytes(lambda: chunked_entropy(logits)) < 10 * 2**20
