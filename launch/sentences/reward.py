"""The sentences task: one sentence of five to ten words with two given words. There are many right answers.

A program can see the form of a sentence and not its sense, so this asks for what a policy would otherwise leave out:
a capital, a full stop, a verb, a little word such as "the", and no other word twice. A right sentence gets 1, any
other answer 0.1 for each of the five rules of `rules` that it keeps: without these crumbs a small model, of whose
first answers almost none is right, would have nothing to learn from.
This file is also what OpenRLHF loads with `--reward.remote_url launch/sentences/reward.py`: it calls `reward_func`.
"""

import re

import torch

from openrlhf_stare.rewards.responses import response_of, without_special_tokens

FEWEST, MOST = 5, 10  # words
SENTENCE = re.compile(r"[A-Z][A-Za-z']*(?:[,;]? [A-Za-z']+)*\.")
LITTLE = set(
    "a an the this that these those my your his her its our their some no each every one of in on at by to for from "
    "with under over near into across and or but he she it we they i you who there".split()
)
REPEATABLE = {"a", "an", "the"}
# Forms that no ending gives away. Besides them a word on -ed, -ing or -s counts as a verb.
VERBS = set(
    "is are was were be been am has have had do does did can could will would may might must should go went gone "
    "come came run ran sit sat stand stood see saw seen say said make made take took give gave get got find found "
    "keep kept hold held leave left lose lost lead led feel felt fall fell fly flew grow grew know knew think "
    "thought tell told bring brought buy bought catch caught build built break broke choose chose draw drew drink "
    "drank drive drove eat ate fight fought hang hung hear heard hide hid lie lay put read ride rode ring rang "
    "rise rose sell sold send sent set shine shone sing sang sink sank sleep slept speak spoke spend spent steal "
    "stole sweep swept swim swam swing swung throw threw wake woke wear wore win won write wrote cut hit let shut "
    "cost hurt love like need want look walk live play help show turn carry watch open close cross cover".split()
)
NOT_VERBS = re.compile(
    r"(?:ss|us|'s)$|^(?:this|his|its|as|thus|always|perhaps|during|red|bed|thing|king|ring|spring)$"
)
ENDING = re.compile(r"[a-z]{2,}(?:ed|ing|s)$")


def words_of(answer: str) -> list[str]:
    return re.findall(r"[a-z']+", answer.lower())


def rules(answer: str, given: tuple[str, str]) -> dict[str, bool]:
    """Which rules an answer keeps."""
    words = words_of(answer)
    others = [word for word in words if word not in given]
    content = [word for word in words if word not in REPEATABLE]
    return {
        "form": SENTENCE.fullmatch(answer) is not None,
        "length": FEWEST <= len(words) <= MOST,
        "first word": given[0] in words,
        "second word": given[1] in words,
        "words": (
            len(set(content)) == len(content)
            and not any(map(str.__eq__, words, words[1:]))
            and any(word in VERBS or (ENDING.search(word) and not NOT_VERBS.search(word)) for word in others)
            and any(word in LITTLE for word in others)
            and all(re.search("[aeiouy]", word) and (len(word) > 1 or word in "ai") for word in others)
        ),
    }


def score(answer: str, given: tuple[str, str], right: bool = True) -> float:
    """The reward; `right` is what another rule says, which a right answer has to keep as well."""
    kept = rules(answer, given).values()
    return 1.0 if all(kept) and right else 0.1 * sum(kept)


def answer_in(query: str, prompt: str) -> str:
    """The response without the special tokens at its end and without blanks around it."""
    return without_special_tokens(response_of(query, prompt) or "").strip()


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    """OpenRLHF's interface. A label is the two given words with a blank between them."""
    answers = [answer_in(query, prompt) for query, prompt in zip(queries, prompts, strict=True)]
    rewards = torch.tensor([score(a, tuple(label.split())) for a, label in zip(answers, labels, strict=True)])
    # OpenRLHF logs every tensor in extra_logs, here as train/right.
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"right": (rewards == 1).float()}}
