"""Nothing of ours in the training loop waits for the GPU: CUDA's own watch raises where the host would."""

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ROWS, LENGTH = 4, 8


@pytest.fixture
def watched():
    """Call it when everything is prepared."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


def micro_batch(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    values = [-torch.rand(ROWS, LENGTH, generator=generator).cuda() for _ in range(3)]
    return values[0].requires_grad_(), *values[1:], torch.ones(ROWS, LENGTH, dtype=torch.long, device="cuda")


def counts() -> dict[str, torch.Tensor]:
    return {name: torch.full((), 2.0, device="cuda") for name in ("batch_num_tokens", "global_batch_size")}


def method_names() -> list[str]:
    from openrlhf_stare.methods import base

    return base.names()


@pytest.mark.parametrize("name", method_names())
def test_a_method(watched, name):
    from openrlhf_stare.actor_group.policy_loss import MethodLoss
    from openrlhf_stare.methods import base

    loss, generator = MethodLoss(base.find(name)), torch.Generator().manual_seed(0)
    log_probs, advantages = -torch.rand(100, generator=generator), torch.randn(100, generator=generator)
    entropies = torch.rand(100, generator=generator)
    loss.open_rollout(base.Tokens(log_probs, advantages, torch.ones(100, dtype=torch.bool), entropies))
    of_pass = torch.rand(ROWS, LENGTH, device="cuda")
    batch, normalisers = micro_batch(generator), counts()
    watched()
    value, *_ = loss(*batch, entropies=of_pass, rows=range(ROWS), **normalisers)
    value.backward()


@pytest.mark.parametrize("stages", [1, 2])
def test_tpo(watched, stages):
    from openrlhf_stare.tpo.loss import TargetPolicyLoss
    from openrlhf_stare.tpo.target import TpoConfig

    loss, generator = TargetPolicyLoss(TpoConfig(), samples_per_prompt=2), torch.Generator().manual_seed(0)
    share = torch.rand(ROWS, dtype=torch.float64, generator=generator)
    # The target comes from the CPU, as in the trainer.
    loss.open_micro_batch(share, torch.full((), 2.0, device="cuda"), share.cuda() if stages == 2 else None)
    batch, normalisers = micro_batch(generator), counts()
    watched()
    value, *_ = loss(*batch, **normalisers)
    value.backward()
