"""The plain-torch stand-ins for what OpenRLHF takes from flash_attn to pack sequences."""

import pytest
import torch

from openrlhf_stare import worker
from openrlhf_stare.without_flash_attn.padding import index_first_axis, pad_input, unpad_input

worker.install()

LENGTHS = {"all full": [5, 5, 5], "uneven": [1, 5, 3, 2], "one row": [4], "with an empty row": [3, 0, 2]}
EVERY_LENGTH = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
BOTH_SIDES = pytest.mark.parametrize("side", ["left", "right"])


def make_mask(lengths: list[int], side: str) -> torch.Tensor:
    position, length = torch.arange(5), torch.tensor(lengths).unsqueeze(-1)
    return (position < length if side == "right" else position >= 5 - length).long()


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@EVERY_LENGTH
@BOTH_SIDES
@pytest.mark.parametrize("rest", [(), (1,), (2, 3)], ids=str)
def test_unpad_then_pad_is_the_tensor_with_zeros_under_the_padding(lengths, side, rest):
    mask = make_mask(lengths, side)
    tensor = draw(len(lengths), 5, *rest)
    packed, indices, cumulative, longest, used = unpad_input(tensor, mask)
    assert packed.shape == (sum(lengths), *rest)
    assert torch.equal(packed, tensor[mask.bool()])
    assert torch.equal(packed, index_first_axis(tensor.flatten(0, 1), indices))
    assert cumulative.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    assert cumulative.dtype == torch.int32  # as attention kernels want it
    assert (longest, used.tolist()) == (max(lengths), lengths)
    kept = mask.view(*mask.shape, *[1] * len(rest)).bool()
    assert torch.equal(pad_input(packed, indices, len(lengths), 5), tensor.masked_fill(~kept, 0))


@pytest.mark.parametrize("seed", range(5))
def test_any_mask_round_trips(seed):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(6, 9, generator=generator) < 0.6
    tensor = torch.randn(6, 9, 2, generator=generator)
    packed, indices, *_ = unpad_input(tensor, mask)
    assert torch.equal(pad_input(packed, indices, 6, 9), tensor * mask.unsqueeze(-1))


@BOTH_SIDES
def test_gradient_flows_to_the_unmasked_entries_only(side):
    mask = make_mask([1, 5, 3], side)
    tensor, factors = draw(3, 5, 2).requires_grad_(), draw(3, 5, 2) + 3
    packed, indices, *_ = unpad_input(tensor, mask)
    (pad_input(packed, indices, 3, 5) * factors).sum().backward()
    assert torch.equal(tensor.grad, factors * mask.unsqueeze(-1))


@EVERY_LENGTH
@BOTH_SIDES
def test_openrlhfs_packing_gives_the_log_probs_of_the_padded_batch(lengths, side):
    """`Actor.forward` with `--ds.packing_samples`: unpad, score the next token of each, pad again."""
    from openrlhf.models.ring_attn_utils import gather_and_pad_tensor, unpad_and_slice_tensor

    mask = make_mask(lengths, side)
    tokens = torch.randint(1, 11, mask.shape, generator=torch.Generator().manual_seed(2)) * mask
    scores = torch.log_softmax(draw(11, 11), dim=-1).requires_grad_()  # log pi(next token | this token)

    packed, positions, following, pad_length, indices = unpad_and_slice_tensor(tokens, mask, None)
    assert packed.shape == positions.shape == following.shape == (1, sum(lengths))
    assert pad_length == 0
    assert positions[0].tolist() == [position for length in lengths for position in range(length)]
    log_probs = gather_and_pad_tensor(scores[packed, following], None, 0, indices, *mask.shape)

    padded = scores[tokens, torch.roll(tokens, -1, dims=1)] * mask
    assert torch.equal(log_probs, padded)
    (gradient,) = torch.autograd.grad(log_probs.sum(), scores, retain_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(padded.sum(), scores)[0])


@pytest.mark.skipif("torch.cuda.is_available()", reason="OpenRLHF uses flash_attn where there is a GPU")
def test_they_stand_in_for_openrlhfs_import_and_for_no_other():
    import sys

    import openrlhf.models.ring_attn_utils as openrlhfs

    for name in ("index_first_axis", "pad_input", "unpad_input"):
        assert getattr(openrlhfs, name).__module__ == "openrlhf_stare.without_flash_attn.padding"
    assert not {name for name in sys.modules if name.split(".")[0] == "flash_attn"}
