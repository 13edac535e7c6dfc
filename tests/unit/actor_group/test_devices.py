"""Nothing mixes devices and nothing waits for the GPU in a micro-batch, shown on a machine without a GPU.

`Elsewhere` is a tensor that says that it is on another device (torch's "meta") and has its values on the CPU. Every
operation is computed there, and one that mixes devices raises, as it does on a GPU. torch's own FakeTensorMode will
not do: it has no values, which a rollout's thresholds need, and in a torch without CUDA a tensor that it puts on
"cuda" can neither be indexed nor have a gradient.
Not checked here: collectives over NCCL, and operations that a GPU does not have.
"""

from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from openrlhf_stare import StarePolicyLoss
from openrlhf_stare.algorithms.entropy import chunked_entropy
from openrlhf_stare.algorithms.selection import kth_largest
from openrlhf_stare.methods import base

MethodLoss = StarePolicyLoss.__mro__[1]

import openrlhf.models.actor  # noqa: E402  (which the loss has made importable)

from openrlhf_stare.actor_group.entropy_meter import EntropyMeter  # noqa: E402

SURROGATE = {"is_correction_level": "token", "dual_clip": 3.0}
SHAPE = (4, 9)
COPIES = (torch.ops.aten._to_copy, torch.ops.aten.copy_)
aten = torch.ops.aten


class Elsewhere(torch.Tensor):
    @staticmethod
    def __new__(cls, values: torch.Tensor):
        form = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, values.shape, **form, device="meta")
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _compute(function, args, kwargs or {})


class Device(TorchDispatchMode):
    """Puts what is created on "meta" elsewhere; `reads` are the operations that wait for values from there."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        kind = function.overloadpacket
        from_there = any(isinstance(value, Elsewhere) for value in tree_leaves((args, kwargs)))
        to_cpu = kind == aten._to_copy and str(kwargs.get("device", "meta")) == "cpu"
        if from_there and (kind in (aten._local_scalar_dense, aten.nonzero, aten.masked_select) or to_cpu):
            self.reads.append(str(kind))
        return _compute(function, args, kwargs)


def _compute(function, args, kwargs):
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, Elsewhere)]
    here = [tensor for tensor in tensors if not isinstance(tensor, Elsewhere) and tensor.dim() > 0]
    kind = function.overloadpacket
    if there and here and kind not in COPIES:
        raise RuntimeError(f"{function} mixes devices")
    goes_there = isinstance(args[0], Elsewhere) if kind == aten.copy_ else bool(there)
    if kwargs.get("device") is not None:
        goes_there, kwargs = torch.device(kwargs["device"]).type == "meta", {**kwargs, "device": torch.device("cpu")}
    bare = tree_map(lambda value: value.values if isinstance(value, Elsewhere) else value, (args, kwargs))
    result = function(*bare[0], **bare[1])
    known = {id(tensor.values): tensor for tensor in there}  # an operation in place gives its own tensor back

    def placed(value):
        if not goes_there or not isinstance(value, torch.Tensor):
            return value
        return known[id(value)] if id(value) in known else Elsewhere(value)

    return tree_map(placed, result)


def batch() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    names = ("log_probs", "old_log_probs", "rollout_log_probs", "entropies")
    values = {name: -torch.rand(SHAPE, generator=random) for name in names}
    values["advantages"] = torch.randn(SHAPE, generator=random)
    return values | {"action_mask": torch.rand(SHAPE, generator=random) < 0.8}


def opened(method: type[base.Method]) -> MethodLoss:
    """The loss with the method at its bounds, where it acts, of a rollout opened on the CPU as in a job."""
    loss, whole = MethodLoss(method, **SURROGATE), batch()
    flat = [whole[key][whole["action_mask"]] for key in ("old_log_probs", "advantages", "action_mask", "entropies")]
    loss.open_rollout(base.Tokens(*flat), {strength.name: strength.bound for strength in loss.method.strengths})
    return loss


def call(loss: MethodLoss, inputs: dict[str, torch.Tensor]) -> tuple[tuple, torch.Tensor]:
    log_probs = inputs["log_probs"].requires_grad_()
    result = loss(**inputs)
    result[0].backward()
    return result, log_probs.grad


def elsewhere(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: Elsewhere(tensor) for name, tensor in tensors.items()}


def assert_same(found: tuple[tuple, torch.Tensor], expected: tuple[tuple, torch.Tensor]) -> None:
    for ours, theirs in zip([*found[0], found[1]], [*expected[0], expected[1]], strict=True):
        assert ours.device.type == "meta" and torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("name", base.names())
def test_a_micro_batch_mixes_no_devices_and_waits_for_none(name):
    method = base.find(name)
    expected = call(opened(method), batch())
    loss = opened(method)
    with Device() as device:
        found = call(loss, elsewhere(batch()))
        assert device.reads == []
        assert_same(found, expected)


@pytest.mark.parametrize("name", base.names())
def test_a_batch_that_is_its_own_pool_mixes_no_devices(name):
    """As where the loss is used without a rollout: thresholds and means are found on the batch's device too."""
    method = base.find(name)
    expected = call(MethodLoss(method, **SURROGATE), batch())
    with Device():
        assert_same(call(MethodLoss(method, **SURROGATE), elsewhere(batch())), expected)


@pytest.mark.parametrize("selection", ["kthvalue", "radix"])
def test_selection_mixes_no_devices(selection):
    values, others = torch.randn(500), torch.randn(30)
    counts = [lambda n: n // 5, lambda n: 1]
    expected = kth_largest([values, others], counts, selection=selection)
    with Device():
        found = kth_largest([Elsewhere(values), Elsewhere(others)], counts, selection=selection)
        assert all(value.device.type == "meta" for value in found)
        assert [value.item() for value in found] == [value.item() for value in expected]


def test_the_entropy_of_logits_mixes_no_devices_and_waits_for_none():
    logits = torch.randn(3, 8, 50)
    for view in (logits, logits[:, :-1]):
        expected = chunked_entropy(view, chunk_tokens=4)
        with Device() as device:
            found = chunked_entropy(Elsewhere(view), chunk_tokens=4)
            assert device.reads == [] and found.device.type == "meta"
            assert torch.equal(found.cpu(), expected)


class Policy(torch.nn.Module):
    """As OpenRLHF's `Actor` answers: with entropies beside the log-probs where it is asked for them."""

    def forward(self, sequences, action_mask, return_output=False, return_entropy=False):
        entropy = openrlhf.models.actor.compute_entropy(sequences) if return_entropy else None
        log_probs = -sequences.abs().mean(-1)
        return (log_probs, SimpleNamespace(entropy=entropy)) if return_output else log_probs


@pytest.mark.parametrize("kind", ["exact", "sampled"])
def test_the_meter_mixes_no_devices_and_waits_for_none_until_its_sums_are_taken(kind):
    logits, mask = torch.randn(*SHAPE, 20), batch()["action_mask"]
    needs_tokens = kind == "exact"

    def measured(logits, mask):
        policy = Policy()
        meter = EntropyMeter(policy, kind, needs_tokens)
        with meter.measuring():
            policy.eval()(logits, mask)
        return policy, meter

    policy, meter = measured(logits, mask)
    sums, tokens = meter.take(), meter.take_tokens()
    with Device() as device:
        policy, meter = measured(Elsewhere(logits), Elsewhere(mask))
        if needs_tokens:
            with meter.without_gradient():
                policy.train()(Elsewhere(logits), Elsewhere(mask), return_output=True)
            assert meter.of_training.device.type == "meta" and meter.of_training.shape == SHAPE
        assert device.reads == []
        # What `take` reads; a tensor of this kind has no tolist.
        assert meter._totals.cpu().tolist() == sums and sums[1] == mask.sum()
        assert not needs_tokens or torch.equal(meter.take_tokens(), tokens)


# ── that mistakes are found ──


class KeepsOnTheCpu(base.Method):
    def open_rollout(self, tokens, strengths, group):
        self.kept = torch.ones(SHAPE)
        return {}

    def weights(self, tokens):
        return self.kept * tokens.advantages.sign()


class Waits(base.Method):
    def weights(self, tokens):
        return None if tokens.advantages.any() else tokens.advantages


def test_a_method_that_keeps_tokens_on_the_cpu_is_found_out():
    loss = opened(KeepsOnTheCpu)
    with Device(), pytest.raises(RuntimeError, match="mul.Tensor mixes devices"):
        call(loss, elsewhere(batch()))


def test_a_method_that_waits_is_found_out():
    loss = opened(Waits)
    with Device() as device:
        call(loss, elsewhere(batch()))
        assert device.reads == ["aten._local_scalar_dense"]


def test_numbers_copies_and_new_tensors_are_where_they_say():
    with Device() as device:
        there = Elsewhere(torch.ones(3))
        assert (there + torch.tensor(1.0)).device.type == "meta"  # a number may come from the CPU
        assert torch.zeros(2, device="meta").device.type == torch.ones(2).to("meta").device.type == "meta"
        assert there.add_(1) is there and there.values.tolist() == [2, 2, 2]
        assert there.cpu().tolist() == [2, 2, 2] and device.reads == ["aten._to_copy"]
