"""What a method is: a way to act on the entropy of a policy through OpenRLHF's policy loss.

Once a rollout, on all ranks:       figures = method.open_rollout(tokens, strengths, group)
Then for each micro-batch, without a collective:
    loss of each token = OpenRLHF's, with the advantage  method.weights(tokens) · A
                         + method.penalty(log_probs, tokens)

Both parts are corrected (importance sampling) and averaged as the user's flags say. So a method
- weighs a token: every surrogate of OpenRLHF is proportional to the advantage (for weights above 0);
- drops a token by the weight 0: its loss and gradient are 0, and it still counts in the mean;
- replaces a token's loss by the weight 0 and the new loss as its penalty.

A method with one line of arithmetic:

    class NoPunishment(Method):
        \"""Tokens of bad responses are not pushed down.\"""

        def weights(self, tokens):
            return (tokens.advantages > 0).float()

Its file is its name: `methods/no_punishment.py` is `--policy_loss no_punishment`.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

from openrlhf_stare import methods
from openrlhf_stare.algorithms.control import EntropyControl, Strength
from openrlhf_stare.options import Options, UsageError

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor

WITHOUT_METHOD = ("openrlhf", "tpo")  # the values of --policy_loss that are no method
OWN_MODULE = "openrlhf_stare_own_"  # the beginning of the module's name of a file of the user's own


@dataclass(frozen=True)
class Tokens:
    """The tokens that a method looks at. Shape: (N,), all action tokens that this rank holds of a rollout, when it is
    opened; (B, A), with padding, in a micro-batch. Nothing of it is written to: it may lie in Ray's store."""

    log_probs: Tensor  # log pi_old in nats, finite for action tokens; a rollout's bits are its micro-batches'
    advantages: Tensor  # finite; outside the mask they mean nothing
    action_mask: Tensor  # bool; False for prompt, tool output and padding
    # In nats, for a method with `needs_entropy`, else None. When a rollout is opened: the log-prob pass's, (M,) in no
    # order, of whichever responses this rank had in that pass, those without a finite reward too. In a micro-batch:
    # the training pass's, (B, A). Without a gradient: to push the entropy is what `entropy_coefficient` is for.
    entropies: Tensor | None = None


class Method:
    """A method that does nothing, for others to derive from.

    Attributes:
        Options: the dataclass of the options that become `--NAME.OPTION`.
        needs_entropy: whether `Tokens.entropies` is wanted; the training pass then computes entropies.
        control: the published ones of the controller's options, where they are not `EntropyControl`'s defaults.
        options: an instance of `Options`.
        clip_range: the ε's of the surrogate, below and above a ratio of 1.
    """

    Options: ClassVar[type[Options]] = Options
    needs_entropy: ClassVar[bool] = False
    control: ClassVar[dict[str, object]] = {"schedule": "open"}

    def __init__(self, options: Options | None = None, clip_range: tuple[float, float] = (0.2, 0.2)) -> None:
        self.options = self.Options() if options is None else options
        self.clip_range = clip_range

    @property
    def strengths(self) -> tuple[Strength, ...]:
        """What the controller may set; their starts and bounds can come from the options."""
        return ()

    def open_rollout(
        self, tokens: Tokens, strengths: dict[str, float], group: dist.ProcessGroup | None
    ) -> dict[str, float]:
        """Fix what holds for the whole `fit`: thresholds and means over all ranks, and the strengths.

        Every rank of `group` calls it at the same place, one without any token too. None for this process alone.

        Args:
            tokens: (N,), on the CPU.
            strengths: a value for each of `self.strengths`, by name, the same on all ranks.

        Returns:
            Figures for the log, the same on all ranks.
        """
        return {}

    def weights(self, tokens: Tokens) -> Tensor | None:
        """Float32 of the shape of `tokens`: what multiplies each token's advantage. None leaves OpenRLHF's loss as it
        is, bit for bit. No gradient goes through it."""
        return None

    def penalty(self, log_probs: Tensor, tokens: Tokens) -> Tensor | None:
        """(B, A): what is added to the tokens' losses, or None. `log_probs` (B, A) are the policy's in training, with
        their gradient."""
        return None

    def entropy_coefficient(self) -> float | None:
        """OpenRLHF's `--actor.entropy_coef` for this `fit`; None leaves the user's."""
        return None


def entropy_control(method: type[Method] | None, given: dict[str, object]) -> EntropyControl:
    """The controller's options for a method: those `given`, then the method's own, then the defaults.

    Without a method the schedule is `open`, since there is nothing to set.

    Raises:
        ValueError: see `EntropyControl`.
    """
    return EntropyControl(**(method.control | given if method else given | {"schedule": "open"}))


# ── the registry: a file of this folder is a method ──


def names() -> list[str]:
    """The methods that there are, in alphabetical order."""
    return [module.name for module in pkgutil.iter_modules(methods.__path__) if module.name != "base"]


def find(name: str) -> type[Method]:
    """The method of this name.

    Raises:
        UsageError: there is none.
    """
    if name not in names():
        known = ", ".join([*names(), *WITHOUT_METHOD])
        raise UsageError(f"--policy_loss {name} is not one of {known}: choose one of them, or give a Python file")
    return _only_method(importlib.import_module(f"{methods.__name__}.{name}"))


def load(path: str | Path) -> type[Method]:
    """The method in a file of the user's own.

    Raises:
        UsageError: there is no such file, it cannot be imported, or it does not define one subclass of `Method`.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"--policy_loss {path} is not there: give the path of a Python file")
    if not path.stem.isidentifier() or path.stem in (*names(), *WITHOUT_METHOD):
        raise UsageError(
            f"--policy_loss {path} cannot give its method the name {path.stem}: give the file a name of letters, "
            "digits and _ that no method has"
        )
    spec = importlib.util.spec_from_file_location(f"{OWN_MODULE}{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where a dataclass looks for its own
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the file is the user's
        raise UsageError(
            f"--policy_loss {path} cannot be imported ({type(error).__name__}: {error}): mend it"
        ) from None
    return _only_method(module)


def chosen(policy_loss: str) -> type[Method] | None:
    """The method that `--policy_loss` names: one of `names()` or a file of the user's own. None for openrlhf and tpo.

    Raises:
        UsageError: there is none.
    """
    if policy_loss in WITHOUT_METHOD:
        return None
    return load(policy_loss) if policy_loss.endswith(".py") else find(policy_loss)


def part_of(policy_loss: str) -> str:
    """The first part of a method's flags and figures: its name, for a file of one's own the file's."""
    return Path(policy_loss).stem


def first_strength(policy_loss: str) -> str | None:
    """The figure with the first strength of the method that `--policy_loss` names; None without one.

    Raises:
        UsageError: there is no such method.
    """
    method = chosen(policy_loss)
    strengths = method().strengths if method else ()
    return f"{part_of(policy_loss)}/{strengths[0].name}" if strengths else None


def control_default(option: str) -> str:
    """The default of `--entropy.OPTION` as its help says it: the general one, then that of methods with their own."""
    general = {field.name: field.default for field in dataclasses.fields(EntropyControl)}[option]
    own: dict[object, list[str]] = {}
    for name in names():
        own.setdefault(find(name).control.get(option, general), []).append(name)
    own.pop(general, None)
    return "; ".join([str(general), *(f"{value} for {', '.join(of)}" for value, of in own.items())])


def _only_method(module: ModuleType) -> type[Method]:
    of_module = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]
    found = [c for c in of_module if issubclass(c, Method)]
    if len(found) != 1:
        raise UsageError(
            f"--policy_loss {module.__file__} defines {len(found)} subclasses of Method: leave one in it, with the "
            "class that it derives from in another file"
        )
    return found[0]
