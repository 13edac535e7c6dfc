"""Several methods at once: weights multiply, penalties and coefficients add, and each keeps its own names."""

import pytest
import torch

from openrlhf_stare import StarePolicyLoss
from openrlhf_stare.algorithms.control import EntropyController
from openrlhf_stare.methods import base
from openrlhf_stare.options import UsageError

MethodLoss, PolicyLoss = StarePolicyLoss.__mro__[1:3]  # the latter is OpenRLHF's, which the first has made importable

OWN = """
from openrlhf_stare import Strength
from openrlhf_stare.methods.base import Method


class Halves(Method):
    control = {"schedule": "pi", "target": 0.7}
    needs_entropy = True
    strengths = (Strength("half", 1.0, 0.5, 0.25),)

    def open_rollout(self, tokens, strengths, group):
        self.half = strengths["half"]
        return {"halves/seen": float(len(tokens.log_probs))}

    def weights(self, tokens):
        return None if self.half == 1 else self.half * (tokens.entropies > -1).float()

    def penalty(self, log_probs, tokens):
        return None if self.half == 1 else 2 * log_probs
"""


def tokens(entropies: bool = True) -> base.Tokens:
    log_probs = torch.tensor([[-1.0, -2.0, -3.0, -0.5], [-0.1, -2.5, -0.3, -4.0]])
    advantages = torch.tensor([[1.0, 1.0, 1.0, 1.0], [-1.0, -1.0, -1.0, -1.0]])
    mask = torch.ones_like(log_probs, dtype=torch.bool)
    return base.Tokens(log_probs, advantages, mask, torch.rand(2, 4) if entropies else None)


def flat(of: base.Tokens) -> base.Tokens:
    return base.Tokens(*(None if tensor is None else tensor.flatten() for tensor in vars(of).values()))


def at(method: base.Method, end: str) -> dict[str, float]:
    return {strength.name: getattr(strength, end) for strength in method.strengths}


def opened(policy_loss: str, end: str = "start") -> tuple[base.Method, dict[str, float]]:
    method = base.chosen(policy_loss)()
    return method, method.open_rollout(flat(tokens()), at(method, end), None)


def test_strengths_and_figures_keep_their_names_with_the_methods_before_them():
    method, figures = opened("stare+entropy_bonus", "bound")
    assert [strength.name for strength in method.strengths] == ["stare/reweight_w", "entropy_bonus/coefficient"]
    assert method.figure("stare/reweight_w") == "stare/reweight_w"
    assert method.flags().keys() >= {"stare.w_max", "entropy_bonus.bound"}
    assert figures == opened("stare", "bound")[1]
    assert base.strength_figures(base.chosen("ce_gppo+sign_weights")())[0] == "sign_weights/alpha"
    assert base.name_of("stare+/some/where/own.py") == "stare+own"


def test_weights_multiply_and_coefficients_add(tmp_path):
    (tmp_path / "halves.py").write_text(OWN)
    own = str(tmp_path / "halves.py")
    of = tokens()
    single = [opened(name, "bound")[0].weights(of) for name in ("stare", "repo", own)]
    assert torch.equal(opened(f"stare+repo+{own}", "bound")[0].weights(of), single[0] * single[1] * single[2])
    both, figures = opened(f"entropy_bonus+{own}", "bound")
    assert both.entropy_coefficient() == 0.2 and figures == {"halves/seen": 8.0}
    assert opened("stare+repo")[0].entropy_coefficient() is None
    assert torch.equal(opened("stare+entropy_bonus", "bound")[0].weights(of), single[0])


def test_penalties_add(tmp_path):
    (tmp_path / "halves.py").write_text(OWN)
    of, own = tokens(), str(tmp_path / "halves.py")
    moved = of.log_probs + torch.tensor([0.5, -0.5, 0.5, -0.5])
    of_kl_cov, of_own = (opened(name, "bound")[0].penalty(moved, of) for name in ("kl_cov", own))
    assert torch.equal(opened(f"kl_cov+{own}", "bound")[0].penalty(moved, of), of_kl_cov + of_own)
    assert opened("stare+sign_weights", "bound")[0].penalty(moved, of) is None


def test_the_clip_range_of_one_holds_for_the_other():
    """CE-GPPO replaces the loss of the tokens that are clipped, so it must know where they are."""
    method, _ = opened("clip_higher+ce_gppo", "bound")
    assert method.surrogate_range() == (0.2, 1.0)
    of = tokens()
    penalty = method.penalty(of.log_probs + torch.log(torch.tensor([1.9, 2.1, 0.9, 0.5])), of)
    is_above, is_below = penalty[0] != 0, penalty[1] != 0
    assert (penalty[0].tolist(), is_below.tolist()) == ([0, 0, 0, 0], [False, False, False, True])
    assert is_above.sum() == 0  # beta_high 1: the penalty's value is 0, its gradient is not
    method.open_rollout(flat(of), at(method, "neutral"), None)
    assert method.surrogate_range() == (0.2, 0.2)


def test_what_the_user_leaves_open_is_the_first_ones(tmp_path):
    assert base.entropy_control(base.chosen("stare+entropy_bonus"), {}).schedule == "gate"
    control = base.entropy_control(base.chosen("entropy_bonus+stare"), {})
    assert (control.schedule, control.step, control.target) == ("adaptive", 0.005, 0.2)
    (tmp_path / "halves.py").write_text(OWN)
    own = base.chosen(f"{tmp_path}/halves.py+stare")
    assert base.entropy_control(own, {}).target == 0.7 and own.needs_entropy


def test_the_facts_of_a_composition():
    def facts(policy_loss: str) -> tuple[bool, ...]:
        of = base.chosen(policy_loss)
        return of.needs_entropy, of.acts_in_first_step, of.needs_advantages, of.tells_tokens_apart

    assert facts("stare+entropy_bonus") == (False, True, False, True)
    assert facts("kl_cov+high_entropy") == (True, True, True, True)
    assert facts("clip_higher+ce_gppo") == (False, False, True, True)
    assert facts("clip_higher+entropy_bonus") == (False, True, False, False)
    assert base.chosen("entropy_bonus+stare").sets == ("L+", "L-")


def test_one_effort_for_all():
    method = base.chosen("stare+entropy_bonus")
    method = method(method.options_under("pi", lambda part: {}))
    control = base.entropy_control(type(method), {"schedule": "pi", "sides": "both", "target": 0.5, "k_p": 1.0})
    pi = EntropyController(control, method.strengths)
    assert pi.update(0.25) == {
        "stare/reweight_w": pytest.approx(60**pi.effort),
        "stare/reweight_m": pytest.approx(0.3**pi.effort),
        "entropy_bonus/coefficient": pytest.approx(0.2 * pi.effort),
    }
    assert pi.update(0.75)["entropy_bonus/coefficient"] == pytest.approx(0.2 * pi.effort) and pi.effort < 0


@pytest.mark.parametrize("policy_loss", ["stare+entropy_bonus", "clip_higher+repo", "kl_cov+high_entropy"])
def test_a_neutral_composition_is_openrlhfs_loss_bit_for_bit(policy_loss):
    of, method = tokens(), base.chosen(policy_loss)
    loss = MethodLoss(method, clip_eps_high=0.28)
    loss.open_rollout(flat(of), at(loss.method, "neutral"))
    log_probs = (of.log_probs + 0.4).requires_grad_()
    ours = loss(log_probs, of.log_probs, of.advantages, of.action_mask, entropies=of.entropies)
    theirs = PolicyLoss(clip_eps_high=0.28)(log_probs, of.log_probs, of.advantages, of.action_mask)
    assert all(mine is other is None or torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("policy_loss", ["stare+stare", "kl_cov+stare+kl_cov"])
def test_a_method_twice_is_refused(policy_loss):
    with pytest.raises(UsageError, match=r"has a method twice: name each once$"):
        base.chosen(policy_loss)


@pytest.mark.parametrize(("policy_loss", "alone"), [("stare+tpo", "tpo"), ("openrlhf+stare", "openrlhf")])
def test_what_is_no_method_to_compose_is_refused(policy_loss, alone):
    with pytest.raises(UsageError, match=rf"names {alone}, which goes with no other: give it alone$"):
        base.chosen(policy_loss)


@pytest.mark.parametrize("policy_loss", ["stare+", "stare+nothing", "+stare"])
def test_what_is_no_method_is_refused(policy_loss):
    with pytest.raises(UsageError, match=r"is not one of .*: choose one of them"):
        base.chosen(policy_loss)


def test_a_folder_may_have_a_plus_in_its_name(tmp_path):
    (tmp_path / "c++").mkdir()
    (tmp_path / "c++/halves.py").write_text(OWN)
    assert base.chosen(f"{tmp_path}/c++/halves.py").name == "halves"
