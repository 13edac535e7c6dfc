"""Nothing of ours in the training loop waits for the GPU: a micro-batch reads no value and blocks on no copy.

Under torch's FakeTensorMode tensors are on a GPU where there is none. Reading a value of one raises, and so does a
mix of devices. tests/gpu/test_no_waits.py lets CUDA itself look.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from openrlhf_stare import worker

worker.install()

from openrlhf_stare.actor_group.policy_loss import MethodLoss  # noqa: E402
from openrlhf_stare.methods import base  # noqa: E402
from openrlhf_stare.methods.base import Tokens  # noqa: E402
from openrlhf_stare.tpo.loss import TargetPolicyLoss  # noqa: E402
from openrlhf_stare.tpo.target import TpoConfig  # noqa: E402

ROWS, LENGTH = 4, 8


class WithoutCuda(TorchFunctionMode):
    """A build of torch without CUDA cannot invert or index its tensors by Python's operators: here by other names."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.__invert__:
            return args[0].bitwise_not()
        if function is torch.Tensor.__setitem__ and isinstance(args[1], torch.Tensor):
            return args[0].masked_fill_(args[1], args[2])  # as torch does with a mask and a number
        if function is torch.Tensor.__getitem__:
            assert not isinstance(args[1], torch.Tensor), "how many a mask selects has to be read"
            raise NotImplementedError(f"the index {args[1]}")
        return function(*args, **(kwargs or {}))


class NoBlockingCopy(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.ops.aten._to_copy.default:
            source, target = args[0].device, torch.device(kwargs.get("device") or args[0].device)
            assert source.type == target.type or kwargs.get("non_blocking"), f"a copy from {source} to {target} blocks"
        return function(*args, **kwargs)


@pytest.fixture
def on_a_gpu():
    """Tensors are on a GPU that is not there, in which a method's statistics, which are on the CPU, are real."""
    with FakeTensorMode(allow_non_fake_inputs=True), NoBlockingCopy(), WithoutCuda():
        yield


def micro_batch() -> tuple[torch.Tensor, ...]:
    """Log-probs, old log-probs and advantages (B, A), and the mask."""
    values = [-torch.rand(ROWS, LENGTH, device="cuda") for _ in range(3)]
    return *values, torch.ones(ROWS, LENGTH, dtype=torch.long, device="cuda")


def counts() -> dict:
    return {name: torch.full((), 2.0, device="cuda") for name in ("batch_num_tokens", "global_batch_size")}


@pytest.mark.parametrize("name", base.names())
def test_a_method(name, request):
    method = base.find(name)
    loss = MethodLoss(method)
    generator = torch.Generator().manual_seed(0)
    log_probs, advantages = -torch.rand(100, generator=generator), torch.randn(100, generator=generator)
    entropies = torch.rand(100, generator=generator) if method.needs_entropy else None
    loss.open_rollout(Tokens(log_probs, advantages, torch.ones(100, dtype=torch.bool), entropies))
    request.getfixturevalue("on_a_gpu")
    entropies = torch.rand(ROWS, LENGTH, device="cuda") if method.needs_entropy else None
    value, *_ = loss(*micro_batch(), entropies=entropies, rows=range(ROWS), **counts())
    assert value.device.type == "cuda"


@pytest.mark.parametrize("stages", [1, 2])
def test_tpo(on_a_gpu, stages):
    loss = TargetPolicyLoss(TpoConfig(), samples_per_prompt=2)
    share = torch.rand(ROWS, dtype=torch.float64)  # on the CPU, as the trainer has the target
    loss.open_micro_batch(share, torch.full((), 2.0, device="cuda"), share if stages == 2 else None)
    value, *_ = loss(*micro_batch(), **counts())
    assert value.device.type == "cuda"


def test_what_waits_is_noticed(on_a_gpu):
    mask = micro_batch()[-1]
    values = torch.ones(2)
    for wait in (mask.any().__bool__, mask.sum().item, lambda: mask[mask.bool()], mask.cpu, lambda: values.to("cuda")):
        with pytest.raises(Exception):  # noqa: B017 - of several kinds
            wait()
