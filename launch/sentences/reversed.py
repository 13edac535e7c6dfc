"""Another rule for the sentences task, chosen before it was run: a right sentence whose given words come the other way
round, the second before the first. Most sentences that a model writes have them as they are given."""

import importlib.util
from pathlib import Path

import torch

# Not as `reward`, a name that other tasks' files have too.
_spec = importlib.util.spec_from_file_location("sentences_reward", Path(__file__).with_name("reward.py"))
sentences = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sentences)


def score(answer: str, given: tuple[str, str]) -> float:
    words = sentences.words_of(answer)
    turned = all(word in words for word in given) and words.index(given[1]) < words.index(given[0])
    return sentences.score(answer, given, right=turned)


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    answers = [sentences.answer_in(query, prompt) for query, prompt in zip(queries, prompts, strict=True)]
    rewards = torch.tensor([score(a, tuple(label.split())) for a, label in zip(answers, labels, strict=True)])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"right": (rewards == 1).float()}}
