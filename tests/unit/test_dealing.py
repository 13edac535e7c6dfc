"""How many responses of a rollout are trained on, said at the start."""

import itertools
import re
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


@pytest.mark.parametrize("model", ["critic", "ref", "reward"])
@pytest.mark.parametrize(("ranks", "fits"), [(1, True), (2, True), (3, False), (4, False)])
def test_with_dynamic_batches_other_models_take_the_actor_s_shares(model, ranks, fits):
    args = of_models(dynamic=True, **{model: ranks})
    said = [str(finding) for finding in resources.unequal_shares(args)]
    assert bool(said) != fits and not list(resources.unequal_shares(of_models(**{model: ranks})))
    assert fits or f"makes batches for the 2 data-parallel ranks of the actor, which the {ranks} of the " in said[0]


def test_below_zero_3_a_model_that_only_computes_takes_what_it_gets():
    args = of_models(ref=4)
    assert dealing.responses_of_a_rollout(args) == (10, 8)
    args.ds.zero_stage = 2
    assert dealing.responses_of_a_rollout(args) == (10, 10) and not list(resources.unequal_shares(args))
    args.ref.num_gpus_per_node = 16
    with pytest.raises(
        UsageError, match="makes 10 batches of the 10 .* fewer than the 16 data-parallel ranks of the r"
    ):
        refuse(resources.unequal_shares(args))
    # One rank of the actor takes all ten, in four batches, of which the last is not full.
    args.actor.num_gpus_per_node, args.rollout.micro_batch_size = 1, 3
    for ranks, fits in ((4, True), (5, False)):
        args.ref.num_gpus_per_node = ranks
        assert (not list(resources.unequal_shares(args))) == fits
    args.ds.zero_stage = 3  # there `nothing_kept` says so
    assert not list(resources.unequal_shares(args))
    critic = of_models(critic=16)
    critic.ds.zero_stage = 2  # it trains, so that what suits it is kept
    assert not list(resources.unequal_shares(critic))


@pytest.mark.parametrize(
    ("sizes", "dynamic", "said"),
    [
        ((2, 2, 4, 16, 128), False, "does not divide the 64 responses that are kept of a rollout"),
        ((2, 2, 4, 48, 128), False, "does not divide the 192 responses"),
        ((2, 2, 4, 48, 128), True, "leaves 64 of the 192 responses that are kept of a rollout untrained"),
        ((2, 2, 4, 32, 128), False, None),
        ((2, 2, 4, 32, 128), True, None),
        ((2, 2, 4, 32, 64), False, None),
        # Of 1,020 each of six ranks gets 170, in eight steps of 21.
        ((6, 1, 1, 1024, 128), True, "leaves 12 of the 1020 responses"),
        ((6, 1, 1, 128, 128), True, None),
    ],
)
def test_a_rollout_that_is_not_whole_optimizer_steps_is_warned_of(sizes, dynamic, said):
    args = arguments(*sizes)
    args.train.dynamic_batch_enable = dynamic
    refuse(dealing.no_step(args))
    findings = [str(finding) for finding in dealing.unfilled_steps(args)]
    assert findings == [] if said is None else findings[0].startswith(f"--train.batch_size {sizes[-1]} {said}")


@pytest.mark.parametrize(
    ("sizes", "micro_batch", "dynamic", "said"),
    [
        ((2, 2, 4, 16, 128), 2, True, "--train.batch_size 128 leaves nothing to train on, since each of the 2 data-"),
        ((8, 1, 1, 8, 4), 1, True, "--train.batch_size 4 leaves nothing to train on"),  # 4 // 8 for each rank
        ((8, 8, 8, 8, 128), 16, False, "--train.micro_batch_size 16 leaves nothing to train on, since each of the 8"),
    ],
)
def test_sizes_of_which_no_step_is_ever_made_are_refused(sizes, micro_batch, dynamic, said):
    args = arguments(*sizes)
    args.train.dynamic_batch_enable, args.train.micro_batch_size = dynamic, micro_batch
    with pytest.raises(UsageError, match=said):
        refuse(dealing.no_step(args))


def test_dynamic_batches_make_their_steps_of_what_is_sampled_at_once():
    args = arguments(2, 2, 4, 16, 64, at_once=4)  # rollouts of 16 responses
    args.train.dynamic_batch_enable = True
    with pytest.raises(UsageError, match="--train.batch_size 64 leaves nothing to train on"):
        refuse(dealing.no_step(args))
    args.train.batch_size = 8
    refuse(dealing.no_step(args))
    assert dealing.steps_of_a_rollout(args) == 2 and not list(dealing.unfilled_steps(args))


def test_the_remedies_lead_to_whole_optimizer_steps():
    """Whatever the sizes are, the flags that a sentence names are a job about which nothing is said."""
    followed = 0
    for ranks, others, micro, samples, prompts, train, dynamic in itertools.product(
        (1, 2, 6), ({}, {"critic": 1}, {"critic": 2, "ref": 2}), (1, 8), (1, 3), (5, 48), (4, 48, 128), (False, True)
    ):
        args = of_models(dynamic, **others)
        args.actor.num_gpus_per_node = ranks
        args.rollout.batch_size, args.rollout.n_samples_per_prompt, args.train.batch_size = prompts, samples, train
        args.rollout.micro_batch_size = args.train.micro_batch_size = micro

        def rules(args=args):
            yield from resources.uneven_batches(args)
            yield from resources.unequal_shares(args)
            yield from dealing.nothing_kept(args)

        if any(rules()):
            continue
        for finding in (*dealing.no_step(args), *dealing.unfilled_steps(args)):
            batch, rollout = re.findall(r"(?:--train|--rollout)\.batch_size ([0-9]+)", finding.remedy)
            args.train.batch_size, args.rollout.batch_size = int(batch), int(rollout)
            assert not [*rules(), *dealing.no_step(args), *dealing.unfilled_steps(args), *dealing.some_left_out(args)]
            followed += 1
            break
    assert followed > 20
