"""The draw of tokens: as good as random, and the same wherever a token is."""

import torch

from openrlhf_stare.algorithms.draw import lot_numbers


def tokens(n: int = 20_000) -> tuple[torch.Tensor, torch.Tensor]:
    """Like those of a rollout: few different advantages, log-probs with the same leading bits."""
    random = torch.Generator().manual_seed(0)
    return -torch.rand(n, generator=random), torch.randint(0, 4, (n,), generator=random).float() - 1.5


def test_a_lot_depends_on_the_tokens_own_bits_alone():
    log_probs, advantages = tokens()
    lots = lot_numbers(log_probs, advantages, seed=0)
    order = torch.randperm(len(lots), generator=torch.Generator().manual_seed(1))
    assert torch.equal(lot_numbers(log_probs[order], advantages[order], seed=0), lots[order])
    shape = (100, 200)
    assert torch.equal(lot_numbers(log_probs.view(shape), advantages.view(shape), seed=0), lots.view(shape))
    assert lot_numbers(torch.tensor([-0.0]), torch.tensor([1.0]), 0) == lot_numbers(
        torch.tensor([0.0]), torch.tensor([1.0]), 0
    )


def test_lots_are_finite_normal_and_nearly_all_different():
    lots = lot_numbers(*tokens(), seed=3)
    assert lots.isfinite().all() and lots.min() >= torch.finfo(torch.float32).tiny
    different = len(torch.unique(torch.stack(tokens()), dim=1)[0])
    assert len(lots.unique()) >= different - 5  # of 20,000 out of 2**31 some 0.1 are alike by chance


def test_lots_are_independent_of_log_prob_advantage_and_other_seeds():
    log_probs, advantages = tokens()

    def drawn(seed: int) -> torch.Tensor:
        lots = lot_numbers(log_probs, advantages, seed)
        return lots >= lots.sort().values[-2000]

    first, second = drawn(0), drawn(1)
    for value in (log_probs, advantages):
        # The mean of 2,000 of them lies within 4 of its standard deviations.
        assert abs(value[first].mean() - value.mean()) < 4 * value.std() / 2000**0.5
    assert 130 < (first & second).sum() < 270  # 200 in the mean


def test_every_bit_of_the_log_prob_counts():
    log_probs = torch.full((24,), -1.0).view(torch.int32) ^ (1 << torch.arange(24, dtype=torch.int32))
    lots = lot_numbers(log_probs.view(torch.float32), torch.ones(24), seed=0)
    ones = lot_numbers(torch.tensor([-1.0]), torch.ones(1), seed=0)
    assert len(torch.cat([lots, ones]).unique()) == 25
