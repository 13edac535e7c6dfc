"""What a method is: a way to act on the entropy of a policy through OpenRLHF's policy loss.

Once a rollout, on all ranks:       figures = method.open_rollout(tokens, strengths, group)
Then for each micro-batch, without a collective:
    loss of each token = OpenRLHF's, with the advantage  method.weights(tokens) · A
                         + method.penalty(log_probs, tokens)

Both parts are corrected (importance sampling) and averaged as the user's flags say. So a method
- weighs a token: every surrogate of OpenRLHF is proportional to the advantage (for weights above 0);
- drops a token by the weight 0: its loss and gradient are 0, and it still counts in the mean;
- replaces a token's loss by the weight 0 and the new loss as its penalty.
These two are of the ppo surrogate: under gspo a token of weight 0 still acts through the ratio of its response.
It can also set the coefficient of OpenRLHF's entropy bonus and the clip range of its surrogate.

A method with one line of arithmetic:

    class NoPunishment(Method):
        \"""Tokens of bad responses are not pushed down.\"""

        def weights(self, tokens):
            return (tokens.advantages > 0).float()

Its file is its name: `methods/no_punishment.py` is `--policy_loss no_punishment`. `a+b` composes two, see `Composed`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import operator
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from openrlhf_stare import methods
from openrlhf_stare.algorithms.control import EntropyControl, Strength
from openrlhf_stare.dealing import steps_of_a_rollout
from openrlhf_stare.options import Options, UsageError, given
from openrlhf_stare.rules import Finding

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
    # int64, for a method with `needs_places`, else None: a number of each token that no other of the rollout has.
    places: Tensor | None = None


class Method:
    """A method that does nothing, for others to derive from.

    Attributes:
        name: the first part of its flags and figures, its file's name.
        Options: the dataclass of the options that become `--NAME.OPTION`.
        needs_entropy: whether `Tokens.entropies` is wanted; the training pass then computes entropies.
        needs_places: whether `Tokens.places` is wanted.
        control: the published ones of the controller's options, where they are not `EntropyControl`'s defaults.
        of_schedule: schedule -> the options' defaults under it, where they are not those of `Options`.
        acts_in_first_step: whether it does anything while the policy is still the rollout's.
        needs_advantages: whether it does nothing to a token without an advantage.
        tells_tokens_apart: whether it acts on some tokens of a response more than on others.
        sets: what the sets of tokens that it picks among A > 0 and A < 0 are called, or None.
        threshold_figures: the figures with the least surprisal of these sets, in nats, or None.
        options: an instance of `Options`; a method names its type in its class, for whoever reads it.
        clip_range: the ε's of the surrogate, below and above a ratio of 1, as the user's flags say.
    """

    name: ClassVar[str] = ""
    Options: ClassVar[type[Options]] = Options
    needs_entropy: ClassVar[bool] = False
    needs_places: ClassVar[bool] = False
    control: ClassVar[dict[str, Any]] = {"schedule": "open"}
    of_schedule: ClassVar[dict[str, dict[str, object]]] = {}
    acts_in_first_step: ClassVar[bool] = True
    needs_advantages: ClassVar[bool] = True
    tells_tokens_apart: ClassVar[bool] = True
    sets: ClassVar[tuple[str, str] | None] = None
    threshold_figures: ClassVar[tuple[str, str] | None] = None
    options: Any

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        cls.name = cls.__module__.rpartition(".")[2].removeprefix(OWN_MODULE)

    def __init__(self, options: Any = None, clip_range: tuple[float, float] = (0.2, 0.2)) -> None:
        self.options = self.Options() if options is None else options
        self.clip_range = clip_range

    @classmethod
    def options_under(cls, schedule: str, given: Callable[[str], dict[str, Any]]) -> Any:
        """The options under a schedule; `given` has those that the user gave, by the first part of their flags."""
        return cls.Options(**(cls.of_schedule.get(schedule, {}) | given(cls.name)))

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

    def surrogate_range(self) -> tuple[float, float]:
        """The ε's of OpenRLHF's surrogate for this `fit`: the user's, unless the method sets them."""
        return self.clip_range

    # ── what others need to know of it ──

    @property
    def parts(self) -> tuple[Method, ...]:
        """The methods that it is composed of: itself, unless it is a composition."""
        return (self,)

    def figure(self, strength: str) -> str:
        """The figure under which a strength is logged."""
        return f"{self.name}/{strength}"

    def flags(self) -> dict[str, object]:
        """Its options by their flags, less the dashes."""
        return {f"{self.name}.{option}": value for option, value in vars(self.options).items()}

    def cannot_go_with(self, args: SimpleNamespace) -> Iterator[Finding]:
        """What of OpenRLHF's nested arguments it cannot work with."""
        yield from ()


class Composed(Method):
    """Several methods at once, `--policy_loss a+b`; the options are those of each by its name.

    Weights multiply; penalties, entropy coefficients and what each changes of the clip range add. Strengths and
    figures keep their names, with the method's before them. One controller sets all strengths, with one effort under
    `pi`; what the user leaves open of it is the first method's.
    """

    of: ClassVar[tuple[type[Method], ...]] = ()
    options: dict[str, Options]

    def __init__(
        self, options: dict[str, Options] | None = None, clip_range: tuple[float, float] = (0.2, 0.2)
    ) -> None:
        super().__init__(options or {}, clip_range)
        self._parts = tuple(part(self.options.get(part.name), clip_range) for part in self.of)

    @classmethod
    def options_under(cls, schedule: str, given: Callable[[str], dict[str, Any]]) -> dict[str, Options]:
        return {part.name: part.options_under(schedule, given) for part in cls.of}

    @property
    def parts(self) -> tuple[Method, ...]:
        return self._parts

    @property
    def strengths(self) -> tuple[Strength, ...]:
        return tuple(
            dataclasses.replace(strength, name=part.figure(strength.name))
            for part in self.parts
            for strength in part.strengths
        )

    def figure(self, strength: str) -> str:
        return strength

    def flags(self) -> dict[str, object]:
        return {flag: value for part in self.parts for flag, value in part.flags().items()}

    def cannot_go_with(self, args: SimpleNamespace) -> Iterator[Finding]:
        for part in self.parts:
            yield from part.cannot_go_with(args)

    def open_rollout(
        self, tokens: Tokens, strengths: dict[str, float], group: dist.ProcessGroup | None
    ) -> dict[str, float]:
        figures: dict[str, float] = {}
        for part in self.parts:
            own = {strength.name: strengths[part.figure(strength.name)] for strength in part.strengths}
            figures |= part.open_rollout(tokens, own, group)
        for part in self.parts:
            if type(part).surrogate_range is Method.surrogate_range:  # the others go by the range in force
                part.clip_range = self.surrogate_range()
        return figures

    def weights(self, tokens: Tokens) -> Tensor | None:
        found = [weights for part in self.parts if (weights := part.weights(tokens)) is not None]
        return functools.reduce(operator.mul, found) if found else None

    def penalty(self, log_probs: Tensor, tokens: Tokens) -> Tensor | None:
        found = [penalty for part in self.parts if (penalty := part.penalty(log_probs, tokens)) is not None]
        return functools.reduce(operator.add, found) if found else None

    def entropy_coefficient(self) -> float | None:
        found = [value for part in self.parts if (value := part.entropy_coefficient()) is not None]
        return sum(found) if found else None

    def surrogate_range(self) -> tuple[float, float]:
        changes = [(part.surrogate_range(), part.clip_range) for part in self.parts]
        low, high = (
            own + sum(changed[side] - unchanged[side] for changed, unchanged in changes)
            for side, own in enumerate(self.clip_range)
        )
        return low, high


def compose(methods: list[type[Method]]) -> type[Method]:
    """The composition of these methods, each of another name."""
    facts = {
        "of": tuple(methods),
        "control": methods[0].control,
        "needs_entropy": any(method.needs_entropy for method in methods),
        "needs_places": any(method.needs_places for method in methods),
        "acts_in_first_step": any(method.acts_in_first_step for method in methods),
        "needs_advantages": all(method.needs_advantages for method in methods),
        "tells_tokens_apart": any(method.tells_tokens_apart for method in methods),
        "sets": next((method.sets for method in methods if method.sets), None),
        "threshold_figures": next((of for method in methods if (of := method.threshold_figures)), None),
    }
    composition: Any = type("Composition", (Composed,), facts)
    composition.name = "+".join(method.name for method in methods)
    return composition


# ── made from the arguments ──


def make(args: SimpleNamespace) -> Method | None:
    """The method that OpenRLHF's nested arguments ask for; None without one.

    Raises:
        UsageError: there is none of this name.
        ValueError: an option is outside its range; see `Options`.
    """
    method = chosen(args.policy_loss)
    if method is None:
        return None
    one = args.actor.eps_clip  # which OpenRLHF takes for both sides
    return method(options_of(method, args), tuple(args.actor.eps_clip_low_high or (one, one)))


def control_of(args: SimpleNamespace) -> EntropyControl:
    """The controller's options that OpenRLHF's nested arguments ask for.

    Raises:
        ValueError: see `EntropyControl`.
    """
    return entropy_control(chosen(args.policy_loss), given(args, "entropy"))


def options_of(method: type[Method], args: SimpleNamespace) -> Any:
    """A method's options as OpenRLHF's nested arguments give them: what is not given has the schedule's default."""
    schedule = entropy_control(method, given(args, "entropy")).schedule
    return method.options_under(schedule, lambda part: given(args, part))


def is_idle(method: Method, args: SimpleNamespace) -> bool:
    """Whether a method never acts: it acts from the second optimizer step on a rollout on, and there is one."""
    if args.actor.policy_loss_type == "gspo" and args.algo.advantage.is_correction_level != "off":
        return False  # there OpenRLHF's ratio is to the policy that sampled, so that the first step clips already
    return not method.acts_in_first_step and steps_of_a_rollout(args) <= 1 and args.train.max_epochs == 1


def facts(method: Method, args: SimpleNamespace) -> dict[str, bool]:
    """What `algorithms.verdict.verdict` asks about a run, by its arguments' names."""
    return {
        "is_idle": is_idle(method, args),
        "needs_advantages": method.needs_advantages,
        "pursues_target": control_of(args).schedule != "open",
    }


def entropy_control(method: type[Method] | None, given: dict[str, Any]) -> EntropyControl:
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
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where a dataclass looks for its own
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the file is the user's
        raise UsageError(
            f"--policy_loss {path} cannot be imported ({type(error).__name__}: {error}): fix it"
        ) from None
    return _only_method(module)


def parts_of(policy_loss: str) -> list[str]:
    """The names and files that `--policy_loss` names: several where it is a composition such as `a+b`."""
    # A folder's name can have a + in it.
    return [policy_loss] if Path(policy_loss).is_file() else policy_loss.split("+")


def chosen(policy_loss: str) -> type[Method] | None:
    """The method that `--policy_loss` names: one of `names()`, a file of the user's own, or several with + between
    them. None for openrlhf and tpo.

    Raises:
        UsageError: there is none, or the same one twice.
    """
    if policy_loss in WITHOUT_METHOD:
        return None
    parts = parts_of(policy_loss)
    for part in WITHOUT_METHOD:
        if part in parts:
            raise UsageError(f"--policy_loss {policy_loss} names {part}, which goes with no other: give it alone")
    found = [load(part) if part.endswith(".py") else find(part) for part in parts]
    if len(found) == 1:
        return found[0]
    if len({method.name for method in found}) < len(found):
        raise UsageError(f"--policy_loss {policy_loss} has a method twice: name each once")
    return compose(found)


def strength_figures(method: Method | None) -> list[str]:
    """The figures with a method's strengths, the first one's first."""
    return [method.figure(strength.name) for strength in method.strengths] if method else []


def own_files(policy_loss: str) -> list[str]:
    """The files of the user's own among the methods that `--policy_loss` names."""
    return [part for part in parts_of(policy_loss) if part.endswith(".py")]


def name_of(policy_loss: str) -> str:
    """What a run's method is called: the methods' names, with + between them; a file's is its own."""
    return "+".join(Path(part).stem for part in parts_of(policy_loss))


def option_default(method: type[Method], option: str) -> str:
    """The default of `--NAME.OPTION` as its help says it: the general one, then those under a schedule."""
    general = {field.name: field.default for field in dataclasses.fields(method.Options)}[option]
    own = {schedule: of[option] for schedule, of in method.of_schedule.items() if option in of}
    return "; ".join([str(general), *(f"{value} under {schedule}" for schedule, value in own.items())])


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
