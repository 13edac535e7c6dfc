"""How many responses of a rollout are trained on, said at the start."""

from types import SimpleNamespace

import pytest
from advantage_step import dealing_args

from openrlhf_stare import dealing
from openrlhf_stare.options import UsageError
from openrlhf_stare.rules import refuse


def arguments(ranks, micro, samples, prompts, train, at_once=None, max_samples=10**8) -> SimpleNamespace:
    args = dealing_args(ranks, micro, samples, prompts, train)
    args.rollout.vllm_generate_batch_size = at_once
    args.data = SimpleNamespace(max_samples=max_samples)
    return args


@pytest.mark.parametrize(
    ("sizes", "flag", "sampled", "multiple"),
    [
        ((2, 2, 3, 2, 2), "--rollout.batch_size 2", 6, 4),
        ((4, 2, 5, 4, 8), "--rollout.batch_size 4", 20, 8),
        ((8, 16, 12, 16, 128), "--rollout.batch_size 16", 192, 32),
        # Rollouts of half a batch make half an optimizer step.
        ((2, 4, 8, 128, 1024, 64), "--rollout.vllm_generate_batch_size 64", 512, 128),
        ((2, 4, 8, 128, 1024, None, 100), "--data.max_samples 100", 800, 128),
    ],
)
def test_a_job_that_could_keep_nothing_is_refused(sizes, flag, sampled, multiple):
    with pytest.raises(UsageError) as caught:
        refuse(dealing.nothing_kept(arguments(*sizes)))
    sentence = str(caught.value)
    assert sentence.startswith(f"{flag} makes rollouts of {sampled} responses, of which none could be kept")
    assert f"give a multiple of {multiple}, or" in sentence and "\n" not in sentence
    prompts = {"--rollout.batch_size": 3, "--rollout.vllm_generate_batch_size": 5, "--data.max_samples": 6}
    remedied = list(sizes)
    remedied[prompts[flag.split()[0]]] = multiple
    refuse(dealing.nothing_kept(arguments(*remedied)))


@pytest.mark.parametrize(
    ("sizes", "left_out", "sampled"),
    [((2, 4, 4, 3, 8), 4, 12), ((4, 2, 5, 9, 8), 5, 45), ((2, 16, 8, 4, 32), 0, 32), ((1, 4, 3, 5, 15), 0, 15)],
)
def test_how_many_of_each_rollout_are_left_out_is_said_at_the_start(sizes, left_out, sampled):
    args = arguments(*sizes)
    refuse(dealing.nothing_kept(args))
    said = [str(finding) for finding in dealing.some_left_out(args)]
    if not left_out:
        assert said == []
        return
    assert f"leaves {left_out} of each rollout's {sampled} responses out of training" in said[0]
    args.rollout.batch_size = int(said[0].rpartition("multiple of ")[2].split()[0])
    assert list(dealing.some_left_out(args)) == []
