"""The token record inside OpenRLHF's real actor group, before and after a resume."""

import json

import pytest
import torch
from harness import fixed_experiences, tokens

from openrlhf_stare import StareOptions, token_weights

RANKS, RESPONSES = 2, 3


def test_rank_0_writes_what_the_loss_trains_on_under_the_step_that_it_is_told(group_of, tmp_path):
    flags = f"""--rollout.batch_size 4 --train.batch_size 16 --train.micro_batch_size 2 --stare.variant C2
        --entropy.target 9 --entropy.record_tokens {RESPONSES} --logger.tensorboard_dir {tmp_path}/tensorboard
        --logger.wandb.run_name first --ckpt.path {tmp_path}/checkpoints""".split()
    experiences = fixed_experiences()
    for index, experience in enumerate(experiences):
        experience.info["reward"] = torch.tensor([float(index)])
    group = group_of(RANKS)
    group.start(flags)
    group.run("begin_step", 1)
    group.forward(experiences)
    group.fit(experiences)
    group.run("begin_step", 2)
    group.forward(fixed_experiences(seed=1))
    group.fit(fixed_experiences(seed=1))
    record = tmp_path / "tensorboard/first/tokens.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1] * RESPONSES + [2] * RESPONSES
    taus = group.run("thresholds")[0]

    group.run("save_checkpoint", "global_step2", {"global_step": 2})
    group.start([*flags, "--ckpt.load_enable", "--logger.wandb.run_name", "second"])
    group.run("begin_step", 3)
    group.forward(experiences)
    group.fit(experiences)
    resumed = (tmp_path / "tensorboard/second/tokens.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in resumed] == [3] * RESPONSES

    written = sorted(path.name for path in (tmp_path / "tensorboard/first").iterdir())
    assert written == ["settings.json", "tokens.jsonl"], "rank 0 alone"
    assert taus == (pytest.approx(lines[-1]["tau_positive"]), pytest.approx(lines[-1]["tau_negative"]))

    # The weights of all tokens of both ranks; the record has those of some responses of rank 0.
    config = StareOptions(variant="C2")
    log_probs, advantages = tokens(experiences)
    weights = token_weights(log_probs, advantages, torch.ones_like(log_probs), config=config)
    weights = weights.split([int(experience.action_mask.sum()) for experience in experiences])
    chosen = [int(line["reward"]) for line in lines[:RESPONSES]]
    assert len(set(chosen)) == RESPONSES and max(chosen) < len(experiences) // RANKS
    for line, index in zip(lines, chosen, strict=False):
        mask = experiences[index].action_mask.bool()
        assert torch.equal(torch.tensor(line["omega"]), weights[index])
        assert torch.equal(torch.tensor(line["surprisal"]), -experiences[index].action_log_probs[mask])
        assert torch.equal(torch.tensor(line["advantage"]), experiences[index].advantages[mask])
        assert len(line["tokens"]) == len(line["omega"]) and line["prompt"]
