"""The same rollout on other clusters: the same entropy-critical tokens, and the same step but for rounding.

    python tests/pipeline/invariance.py [MODEL] [--all]

trains OpenRLHF's real actor group on one fixed rollout (log-probs included) in each cell of ranks × micro-batch ×
layout × ZeRO stage, and prints what differs from the reference cell: a pairwise cover of the table, or all of it.
Each cell trains twice from the same state, with STARE's loss and with OpenRLHF's own, so that the rounding which
the change of cluster brings by itself stands beside STARE's. MODEL is the folder of launch/addends/make.py; made if
it is not there.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from types import SimpleNamespace

import ray
import torch
from harness import ActorGroup, fixed_experiences, start_ray
from openrlhf.trainer.ppo_utils.experience import Experience, balance_experiences
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from openrlhf_stare import StareOptions

RANKS, MICRO_BATCHES, LAYOUTS, ZERO_STAGES = (1, 2, 4), (1, 2, 4), ("padded", "packed", "dynamic"), (2, 3)

RESPONSES, LONGEST, EPOCHS = 32, 14, 2  # each epoch is one optimizer step on the whole rollout
ENTROPY_MARGIN = 0.1  # nats between the rollout's entropy and the target

# Adam's first step is the sign of the gradient and would turn rounding around zero into a whole step; with an epsilon
# of 1 the step is nearly the gradient, times the learning rate.
FLAGS = f"""--actor.adam.eps 1 --actor.adam.lr 0.03 --train.max_epochs {EPOCHS}
--rollout.batch_size {RESPONSES // 4} --train.batch_size {RESPONSES}""".split()


# Powers of two, so that ω·A / A is exactly ω.
STARE = StareOptions(variant="C2", reweight_w=8, reweight_m=0.125)


@dataclass(frozen=True)
class Cell:
    ranks: int
    micro_batch: int
    layout: str
    zero_stage: int

    def flags(self) -> list[str]:
        """With dynamic batches a micro-batch is as many tokens as that many of the longest responses have."""
        layout = {
            "padded": [],
            "packed": ["--ds.packing_samples"],
            "dynamic": ["--train.dynamic_batch_enable", "--train.max_tokens_per_gpu", str(self.micro_batch * LONGEST)],
        }
        micro_batches = [f"--{part}.micro_batch_size={self.micro_batch}" for part in ("train", "rollout")]
        return [*micro_batches, *layout[self.layout], "--ds.zero_stage", str(self.zero_stage)]

    def __str__(self) -> str:
        return f"{self.ranks}x{self.micro_batch}-{self.layout}-zero{self.zero_stage}"


REFERENCE = Cell(1, 1, "padded", 2)


def table() -> list[Cell]:
    return [Cell(*values) for values in itertools.product(RANKS, MICRO_BATCHES, LAYOUTS, ZERO_STAGES)]


def cover() -> list[Cell]:
    """Cells in which any two values of two factors meet, the reference first, those with equal ranks together.

    Nine do: ranks × micro-batches with a Latin square for the layouts and its mate for the stages. The two others
    change one factor of the reference and all of them.
    """
    cells = [Cell(1, 1, "padded", 3), Cell(4, 4, "dynamic", 3)]
    for i, j in itertools.product(range(3), range(3)):
        zero_stage = ZERO_STAGES[min((i + 2 * j) % 3, 1)]
        cells.append(Cell(RANKS[i], MICRO_BATCHES[j], LAYOUTS[(i + j) % 3], zero_stage))
    return sorted(cells, key=lambda cell: (cell != REFERENCE, cell.ranks))


def pairs(cells: list[Cell]) -> set:
    """The pairs of values of two factors that occur in the cells."""
    return {pair for cell in cells for pair in itertools.combinations(enumerate(astuple(cell)), 2)}


# ── one cell ──


@dataclass
class Outcome:
    thresholds: list[tuple[float, float]]  # of each rank
    weights: dict[tuple, list]  # by the response's tokens: ω of its action tokens, as the loss took them in training
    gates: list[float]  # of each rank
    batch_entropy: float
    start: torch.Tensor  # all weights in one vector, float32, and after the steps with either loss
    stare: torch.Tensor
    openrlhf: torch.Tensor
    stare_again: torch.Tensor  # from the restored start
    seconds: float

    def step(self, loss: str) -> float:
        return (getattr(self, loss) - self.start).norm().item()


def rollout(model: str | Path) -> tuple[list[Experience], float]:
    """The fixed responses with the policy's own log-probs, and the policy's mean entropy on them, found in float32."""
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    responses, entropies = fixed_experiences(RESPONSES), []
    for response in responses:
        with torch.no_grad():
            log_probs = policy(response.sequences).logits[:, :-1].log_softmax(dim=-1)
        of_tokens = log_probs.gather(-1, response.sequences[:, 1:, None]).squeeze(-1)
        response.action_log_probs = of_tokens * response.action_mask
        entropies.append(-(log_probs.exp() * log_probs).sum(dim=-1)[response.action_mask.bool()])
    return responses, torch.cat(entropies).mean().item()


def run_cell(group: ActorGroup, cell: Cell) -> Outcome:
    began = time.perf_counter()
    responses, entropy = rollout(group.model)
    with tempfile.TemporaryDirectory() as checkpoints:
        stare = [f"--stare.{name}={value}" for name, value in asdict(STARE).items()]
        target = f"--entropy.target={entropy + ENTROPY_MARGIN}"
        group.start([*FLAGS, *stare, target, *cell.flags(), "--ckpt.path", checkpoints])
        group.run("save_checkpoint", "start")
        start = weights_of(group)
        statuses, weights = train(group, responses, "method")
        thresholds, stare = group.run("thresholds"), weights_of(group)
        group.run("restore")
        train(group, responses, "openrlhf")
        openrlhf = weights_of(group)
        group.run("restore")
        train(group, responses, "method")
        return Outcome(
            thresholds=thresholds,
            weights=weights,
            gates=[status["entropy/gate_on"] for status in statuses],
            batch_entropy=statuses[0]["entropy/mean"],
            start=start,
            stare=stare,
            openrlhf=openrlhf,
            stare_again=weights_of(group),
            seconds=time.perf_counter() - began,
        )


# The other methods, with options that make them act on many of the fixed rollout's tokens, whatever the entropy is.
METHODS = {
    "ce_gppo": [],
    "clip_cov": "--clip_cov.share 0.2 --clip_cov.low 0.05 --clip_cov.high 100".split(),
    "entropy_bonus": "--entropy.schedule pi --entropy.target 4".split(),
    "high_entropy": [],
    "kl_cov": "--kl_cov.share 0.1".split(),
    "sign_weights": "--entropy.schedule open".split(),
    "clip_higher": [],
    "repo": "--repo.zeta 0.5".split(),
    "repo+entropy_bonus": "--entropy.schedule pi --entropy.target 200%".split(),
}


def method_figures(group: ActorGroup, name: str, cell: Cell) -> tuple[dict[str, float], dict[tuple, list]]:
    """The figures of a method, and the weights of all tokens in training, after a rollout in a cell."""
    responses, _ = rollout(group.model)
    group.start([*FLAGS, "--policy_loss", name, *METHODS[name], *cell.flags()])
    statuses, weights = train(group, responses, "method", alike=name != "high_entropy")
    figures = {
        key: value for key, value in statuses[0].items() if key.startswith(tuple(f"{one}/" for one in name.split("+")))
    }
    assert all({**status, **figures} == status for status in statuses)
    return figures, weights


def train(
    group: ActorGroup, responses: list[Experience], loss: str, alike: bool = True
) -> tuple[list[dict], dict[tuple, list]]:
    """The log-prob pass and the training on the rollout, dealt to the ranks as OpenRLHF's controller actor does it.

    The status of every rank, and the weight of every token, which is the same in all epochs if `alike`.
    """
    maker = SimpleNamespace(args=group.args, tokenizer=SimpleNamespace(pad_token_id=0))
    batches = RemoteExperienceMaker.split_rollout_samples(maker, responses)
    group.forward(batches)
    if group.args.train.dynamic_batch_enable:
        batches = balance_experiences(batches, group.args)
    group.append(batches)
    statuses, seen = zip(*group.run("fit_with", loss), strict=True)

    weights = {}
    for response, epochs in itertools.chain.from_iterable(rank.items() for rank in seen):
        assert response not in weights, "no response is dealt to two ranks"
        assert not alike or epochs == [epochs[0]] * EPOCHS, "the weights stay through the epochs"
        weights[response] = epochs[0]
    assert len(weights) == RESPONSES, "every response is trained on"
    return list(statuses), weights


def weights_of(group: ActorGroup) -> torch.Tensor:
    return torch.cat([weights.flatten() for weights in group.run("master_weights")[0].values()])


# ── against the reference ──


def largest_difference(outcome: Outcome, reference: Outcome, loss: str) -> float:
    return (getattr(outcome, loss) - getattr(reference, loss)).abs().max().item()


def relative_difference(outcome: Outcome, reference: Outcome, loss: str) -> float:
    """The distance of the weights from the reference's, in units of the way from the start."""
    return (getattr(outcome, loss) - getattr(reference, loss)).norm().item() / reference.step(loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="folder of launch/addends/make.py")
    parser.add_argument("--all", action="store_true", help="all 54 cells")
    parser.add_argument("--cells", nargs="*", help="these only, after the reference, like 2x4-packed-zero3")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.model or Path(scratch)
        make = Path(__file__).resolve().parents[2] / "launch/addends/make.py"
        subprocess.run([sys.executable, make, folder, "--prompts", "1"], check=True)
        cells = table() if arguments.all else cover()
        if arguments.cells:
            cells = [cell for cell in table() if str(cell) in arguments.cells]
        start_ray(gpus=max(RANKS), log_to_driver=False)  # nothing between the rows
        try:
            print_table(folder / "model", [cell for cell in cells if cell != REFERENCE])
        finally:
            ray.shutdown()


def outcomes(model: Path, cells: list[Cell]) -> Iterator[tuple[Cell, Outcome]]:
    """The cells in turn; those of equal ranks that follow one another share their processes."""
    for ranks, same_ranks in itertools.groupby(cells, key=lambda cell: cell.ranks):
        with ActorGroup(model, ranks=ranks, flags=None) as group:  # starting them takes far longer than a cell
            for cell in same_ranks:
                yield cell, run_cell(group, cell)


def print_table(model: Path, cells: list[Cell]) -> None:
    print(
        f"{'ranks × micro-batch':32}{'equal thresholds, sets, gate':>30}{'entropy':>10}"
        f"{'max |Δθ| STARE, OpenRLHF':>28}{'Δθ / step STARE, OpenRLHF':>28}{'restored':>10}{'s':>6}"
    )
    for cell, outcome in outcomes(model, [REFERENCE, *cells]):
        if cell == REFERENCE:
            reference = outcome
        equal = [
            all(taus == reference.thresholds[0] for taus in outcome.thresholds),
            outcome.weights == reference.weights,
            all(gate == reference.gates[0] for gate in outcome.gates),
        ]
        largest = [largest_difference(outcome, reference, loss) for loss in ("stare", "openrlhf")]
        relative = [relative_difference(outcome, reference, loss) for loss in ("stare", "openrlhf")]
        restored = torch.equal(outcome.stare, outcome.stare_again)
        print(
            f"{cell!s:32}{' '.join('yes' if same else 'NO' for same in equal):>30}"
            f"{outcome.batch_entropy - reference.batch_entropy:10.4f}"
            f"{largest[0]:15.2e}{largest[1]:13.2e}{relative[0]:15.2%}{relative[1]:13.2%}"
            f"{'yes' if restored else 'NO':>10}{outcome.seconds:6.0f}",
            flush=True,
        )
    critical = sum(weight != 1 for weights in reference.weights.values() for weight in weights)
    tokens = sum(map(len, reference.weights.values()))
    apart = (reference.stare - reference.openrlhf).norm().item()
    print(
        f"Reference: τ {reference.thresholds[0]}, {critical} of {tokens} tokens entropy-critical, gate "
        f"{reference.gates[0]:.0f}, entropy {reference.batch_entropy:.4f}, STARE's weights from OpenRLHF's "
        f"{apart / reference.step('openrlhf'):.0%} of a step of {reference.step('openrlhf'):.3f}"
    )


if __name__ == "__main__":
    main()
