"""How many responses of a rollout are trained on, said at the start."""

from types import SimpleNamespace

import pytest
from advantage_step import dealing_args

from openrlhf_stare import dealing
from openrlhf_stare.driver import resources
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


def of_models(dynamic: bool = False, **ranks: int) -> SimpleNamespace:
    """Rollouts of ten responses for an actor of two ranks, and for the other models as many as are given."""
    args = arguments(2, 1, 1, 10, 2)
    args.train.dynamic_batch_enable = dynamic
    if "critic" in ranks:
        args.algo.advantage.estimator = "gae"
    if "ref" in ranks:
        args.algo.kl.init_coef = 0.1
    if "reward" in ranks:
        args.reward = SimpleNamespace(remote_url=None)
    for model, count in ranks.items():
        shape = vars(args).setdefault(model, SimpleNamespace())
        shape.num_nodes, shape.num_gpus_per_node = 1, count
    return args


@pytest.mark.parametrize(
    ("ranks", "kept"),
    [({}, 10), ({"critic": 4}, 8), ({"critic": 1}, 10), ({"ref": 3}, 6), ({"reward": 5, "ref": 2}, 10)],
)
def test_the_ranks_of_every_model_get_equal_shares(ranks, kept):
    # Of ten a critic's four ranks would get 3, 3, 3 and 1, and the first three wait for the last in a collective.
    assert dealing.responses_of_a_rollout(of_models(**ranks)) == (10, kept)


def test_ranks_that_differ_are_named():
    with pytest.raises(UsageError, match="for 2 ranks of the actor and 16 of the critic take 16 responses"):
        refuse(dealing.nothing_kept(of_models(critic=16)))


@pytest.mark.parametrize(("ranks", "fits"), [(1, True), (2, True), (3, False), (4, False)])
def test_with_dynamic_batches_a_critic_takes_the_actor_s_shares(ranks, fits):
    findings = [str(finding) for finding in resources.critic_s_shares(of_models(dynamic=True, critic=ranks))]
    assert bool(findings) != fits and not list(resources.critic_s_shares(of_models(critic=ranks)))
    assert fits or f"one for each data-parallel rank of the actor, which the {ranks} of the critic" in findings[0]


@pytest.mark.parametrize(
    ("prompts", "train", "dynamic", "said"),
    [
        (16, 128, False, "--train.batch_size 128 does not divide the 64 responses that are kept of a rollout"),
        (48, 128, False, "--train.batch_size 128 does not divide the 192 responses"),
        (48, 128, True, "--train.batch_size 128 leaves 64 of the 192 responses that are kept of a rollout untrained"),
        (32, 128, False, None),
        (32, 128, True, None),
        (32, 64, False, None),
    ],
)
def test_a_rollout_that_is_not_whole_optimizer_steps_is_warned_of(prompts, train, dynamic, said):
    args = arguments(2, 2, 4, prompts, train)
    args.train.dynamic_batch_enable = dynamic
    refuse(dealing.no_step(args))
    findings = [str(finding) for finding in dealing.unfilled_steps(args)]
    assert findings == [] if said is None else findings[0].startswith(said)


def test_dynamic_batches_of_which_none_is_full_are_refused():
    args = arguments(2, 2, 4, 16, 128)
    args.train.dynamic_batch_enable = True
    with pytest.raises(UsageError, match="--train.batch_size 128 is more than the 64 .* made: give 64 or fewer"):
        refuse(dealing.no_step(args))
