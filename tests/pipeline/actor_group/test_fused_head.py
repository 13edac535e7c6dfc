"""`--actor.fused_head` on two ranks with ZeRO-3: the same training as with logits, but for rounding."""

from pathlib import Path

import pytest
import torch
from harness import ActorGroup, fixed_experiences
from transformers import AutoModelForCausalLM

# With an epsilon of 1 Adam's step is nearly the gradient; by its sign, rounding around zero would be a whole step.
BATCH = """--rollout.batch_size 4 --train.batch_size 8 --train.micro_batch_size 2 --rollout.temperature 0.8
--actor.adam.eps 1 --actor.adam.lr 0.03 --entropy.target 9 --algo.kl.use_loss""".split()
LAYOUTS = {
    "padded": ["--policy_loss", "entropy_bonus", "--entropy_bonus.coefficient", "0.1"],
    "packed": ["--policy_loss", "stare", "--ds.packing_samples"],
    "dynamic": ["--policy_loss", "high_entropy", "--train.dynamic_batch_enable", "--train.max_tokens_per_gpu", "32"],
}


@pytest.fixture(scope="module")
def models(addends, tmp_path_factory) -> dict[bool, Path]:
    """The policy with and without tied weights."""
    model = AutoModelForCausalLM.from_pretrained(addends / "model")
    is_tied = model.config.tie_word_embeddings
    other = tmp_path_factory.mktemp("other")
    if is_tied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = not is_tied
    model.save_pretrained(other)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (other / name).write_bytes((addends / "model" / name).read_bytes())
    return {is_tied: addends / "model", not is_tied: other}


def three_rollouts(group: ActorGroup, flags: list[str]) -> tuple[list[dict], list[torch.Tensor], torch.Tensor]:
    """The figures of each, the log-probs of each, and the master weights in the end."""
    group.start([*BATCH, *flags])
    figures, log_probs = [], []
    for seed in range(3):
        experiences = fixed_experiences(seed=seed)
        log_probs += group.forward(experiences)
        statuses = group.fit(experiences)
        assert statuses[0] == statuses[1]
        figures.append(statuses[0])
    weights = group.run("parameters")[0]
    return figures, log_probs, torch.cat([weight.flatten() for weight in weights.values()])


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_three_rollouts_are_those_with_logits(group_of, models, layout, tied):
    group = group_of(2)
    own_model, group.model = group.model, str(models[tied])
    try:
        plain = three_rollouts(group, LAYOUTS[layout])
        start = group.start([*BATCH]) or torch.cat([w.flatten() for w in group.parameters().values()])
        fused = three_rollouts(group, [*LAYOUTS[layout], "--actor.fused_head"])
    finally:
        group.model = own_model
    for theirs, ours in zip(plain[1], fused[1], strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    for theirs, ours in zip(plain[0], fused[0], strict=True):
        assert ours.keys() == theirs.keys()
        for name in theirs.keys() - {"entropy/seconds"}:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name
    moved = (plain[2] - start).norm()
    assert moved > 1e-4 and (fused[2] - plain[2]).norm() < 1e-4 * moved
