"""What every method is, and how one is found by its name or in a file of the user's own."""

import pytest
import torch

from openrlhf_stare.methods import base
from openrlhf_stare.options import Options, UsageError

OWN = '''
from openrlhf_stare.methods.base import Method


class NoPunishment(Method):
    """Tokens of bad responses are not pushed down."""

    def weights(self, tokens):
        return (tokens.advantages > 0).float()
'''


def tokens() -> base.Tokens:
    return base.Tokens(
        log_probs=torch.tensor([[-1.0, -2.0]]),
        advantages=torch.tensor([[1.0, -1.0]]),
        action_mask=torch.ones(1, 2, dtype=torch.bool),
    )


def test_a_method_that_defines_nothing_changes_nothing():
    method, of_call = base.Method(), tokens()
    assert method.options == Options() and method.strengths == ()
    assert method.open_rollout(of_call, {}, None) == {}
    assert method.weights(of_call) is None
    assert method.penalty(of_call.log_probs, of_call) is None
    assert method.entropy_coefficient() is None


def test_a_file_of_ones_own_is_a_method(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    method = base.load(tmp_path / "own.py")()
    assert torch.equal(method.weights(tokens()), torch.tensor([[1.0, 0.0]]))


@pytest.mark.parametrize("text, found", [("", 0), (OWN + OWN.replace("NoPunishment", "Other"), 2)])
def test_a_file_without_one_method_is_refused(tmp_path, text, found):
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(UsageError, match=f"^--policy_loss .*own.py defines {found} subclasses of Method: "):
        base.load(tmp_path / "own.py")


def test_a_missing_file_and_an_unknown_name_are_refused(tmp_path):
    with pytest.raises(UsageError, match="^--policy_loss .*none.py is not there: "):
        base.load(tmp_path / "none.py")
    with pytest.raises(UsageError, match="^--policy_loss stair is not one of .*: choose one of them"):
        base.find("stair")


def test_every_name_finds_its_class():
    for name in base.names():
        assert issubclass(base.find(name), base.Method)
