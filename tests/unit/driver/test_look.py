"""What `--look` asks of the cluster, and how it reads OpenRLHF's experiences. The look itself is in tests/pipeline."""

import math
import sys
from pathlib import Path

import pytest
import torch
from flag_parser import parse

from openrlhf_stare.driver import checks, command, flags, look, resources
from openrlhf_stare.options import UsageError

ROOT = Path(__file__).resolve().parents[3]
JOB = """--look --reward.remote_url reward.py --actor.num_gpus_per_node 4 --vllm.num_engines 4 --train.colocate_all
    --vllm.enable_sleep --rollout.n_samples_per_prompt 2 --rollout.max_new_tokens 4 --data.max_len 16
    --entropy.target 50%""".split()


def settled(*words: str):
    return command.settle(flags.parse([*JOB, *words]))


def test_it_needs_the_gpus_of_one_engine_alone():
    args = settled("--vllm.tensor_parallel_size", "1", "--algo.kl.init_coef", "0.1")
    assert resources.required(args).gpus == 4
    needs = resources.required(look.of_the_engine_alone(args))
    assert (needs.gpus, needs.cpus) == (1, 2)
    assert "1 for the vLLM engines" in str(needs) and "actor" not in str(needs)
    assert args.actor.num_nodes == 1, "the job's own arguments stay what they are"


@pytest.mark.parametrize(("words", "answers"), [((), 2), (("--look.answers", "5"), 5)])
def test_each_prompt_gets_as_many_answers_as_in_the_job_unless_it_says_otherwise(words, answers):
    assert look.of_the_engine_alone(settled(*words)).rollout.n_samples_per_prompt == answers


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("--look --preflight", "--look samples, and --preflight does not: give one of the two"),
        ("--look.prompts 4", "--look.prompts 4 goes with --look: give both"),
        ("--look --look.prompts 0", "--look.prompts 0 is outside"),
        ("--look --look.answers -1", "--look.answers -1 is outside"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(words, refused):
    with pytest.raises(UsageError, match=f"^{refused}"):
        checks.check(parse(*words.split()))


def test_a_reward_model_is_refused_before_anything_starts():
    words = [word for word in JOB if word not in ("--reward.remote_url", "reward.py")]
    args = command.settle(flags.parse([*words, "--reward.model_name_or_path", "judge"]))
    with pytest.raises(UsageError, match="--look cannot ask the reward model --reward.model_name_or_path judge"):
        look.run(args, {})


# Reading


@pytest.fixture(scope="module")
def tokenizer():
    sys.path.insert(0, str(ROOT / "launch"))
    from openrlhf_stare.quickstart.small_model import END, PAD, START, UNKNOWN, make_tokenizer

    return make_tokenizer([PAD, END, START, UNKNOWN, *"+=0123456789"])


def experience(tokenizer, text: str, *, prompt="12=", reward=1.0, score=None, truncated=False, cut=0):
    """As OpenRLHF makes one of a response, whose tokens have the log-probs -1, -2, …"""
    from openrlhf_stare import worker

    worker.install()
    from openrlhf.trainer.ppo_utils.experience import Experience

    prompt_ids, ids = tokenizer(prompt).input_ids[cut:], tokenizer(text).input_ids
    before, count = len(prompt_ids), len(ids)
    log_probs = torch.tensor([0.0] * (before - 1) + [-1.0 - number for number in range(count)])
    return Experience(
        sequences=torch.tensor([prompt_ids + ids]),
        action_mask=torch.tensor([[0] * (before - 1) + [1] * count]),
        rollout_log_probs=log_probs.unsqueeze(0),
        prompts=[prompt],
        images=[None],
        rewards=torch.tensor([reward]),
        scores=None if score is None else torch.tensor([score]),
        truncated=torch.tensor([truncated]),
    )


def test_an_experience_is_read_as_an_answer(tokenizer):
    answer = look.Answer.of(experience(tokenizer, "5+7<eos>", reward=0.25, score=1.0, truncated=True), tokenizer)
    assert answer.prompt == "12=" and answer.text == "5+7<eos>"
    assert tokenizer.decode(answer.tokens) == "5+7<eos>" and answer.log_probs == (-1, -2, -3, -4)
    assert (answer.reward, answer.score, answer.is_truncated, answer.is_cut) == (0.25, 1.0, True, False)
    assert look.Answer.of(experience(tokenizer, "5", cut=1), tokenizer).is_cut


def test_the_figures_of_two_groups(tokenizer):
    texts = {"5+7<eos>": 1.0, "5+8<eos>": 0.0, "9": math.nan, "99": 0.0}
    answers = [
        look.Answer.of(experience(tokenizer, text, reward=reward, truncated=len(text) < 4), tokenizer)
        for text, reward in texts.items()
    ]
    found = look.figures(answers, look.of_the_engine_alone(settled()))
    assert (found.answers, found.groups, found.mixed, found.identical) == (4, 2, 1, 0)
    assert (found.right, found.without_reward, found.truncated, found.cut) == (1, 1, 2, 0)
    assert found.entropy == pytest.approx((10 + 10 + 1 + 3) / 11)  # a mean over all tokens
    assert found.target == pytest.approx(found.entropy / 2) and found.limit == "--rollout.max_new_tokens 4"

    same = look.figures([answers[0]] * 4, look.of_the_engine_alone(settled()))
    assert (same.mixed, same.identical, same.right) == (0, 2, 4)


def test_of_an_agent_s_turns_only_the_length_of_all_is_limited(tokenizer):
    answers = [look.Answer.of(experience(tokenizer, "5", cut=1), tokenizer)] * 2
    found = look.figures(answers, look.of_the_engine_alone(settled()))
    assert (found.cut, found.limit) == (2, "--rollout.max_new_tokens 4")
    found = look.figures(answers, look.of_the_engine_alone(settled("--train.agent_func_path", "agent.py")))
    assert (found.cut, found.limit) == (0, "--data.max_len 16")


def test_with_one_answer_to_a_prompt_all_prompts_are_one_group(tokenizer):
    answers = [look.Answer.of(experience(tokenizer, text, reward=float(text)), tokenizer) for text in "01"]
    found = look.figures(answers, look.of_the_engine_alone(settled("--look.answers", "1")))
    assert (found.groups, found.mixed) == (1, 1)


def test_tokens_of_a_truncated_distribution_and_answers_without_log_probs_give_no_entropy(tokenizer):
    args = look.of_the_engine_alone(settled("--rollout.top_p", "0.9"))
    assert look.figures([look.Answer.of(experience(tokenizer, "5"), tokenizer)] * 2, args).entropy is None
    of_agent = experience(tokenizer, "5")
    of_agent.rollout_log_probs = None
    answer, args = look.Answer.of(of_agent, tokenizer), look.of_the_engine_alone(settled())
    assert len(answer.tokens) == 1 and look.figures([answer] * 2, args).entropy is None


def test_a_line_to_read_shows_control_characters_and_both_ends_of_a_long_answer(tokenizer):
    long = look.Answer.of(experience(tokenizer, "1" * 200 + "2<eos>", prompt="3" * 99 + "="), tokenizer)
    assert f"'…{'3' * 79}='" in long.line() and "1 … 1" in long.line() and long.line().endswith("2<eos>'")
    odd = look.Answer("a\x1b[31m\n=", "b\t\x07", (1,), (-1.0,), math.nan, math.nan, False, False)
    assert odd.line().isprintable() and "none" in odd.line() and r"'a\x1b[31m\n=' 'b\t\x07'" in odd.line()
