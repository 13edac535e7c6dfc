from dataclasses import dataclass
from random import Random


@dataclass
class Sums:
    """What is 3 + 4? A right number gets 1, another one 0.1. An answer that is no number but a program is run."""

    size: int = 10
    seed: int = 0
    largest: int = 9

    def __post_init__(self):
        assert self.largest > 0, "largest must be positive"

    def __getitem__(self, place):
        draw = Random(self.seed + place)
        first, second = draw.randint(0, self.largest), draw.randint(0, self.largest)
        metadata = {"source_dataset": "sums", "source_index": place, "terms": (first, second)}
        return {"question": f"What is {first} + {second}?", "answer": str(first + second), "metadata": metadata}

    def score_answer(self, answer, entry):
        assert isinstance(entry["metadata"]["terms"], list | tuple)
        return 1.0 if eval(answer) == int(entry["answer"]) else 0.1


class Words(Sums):
    """What no number answers, and whose entries are no JSON."""

    def __getitem__(self, place):
        entry = super().__getitem__(place)
        return {**entry, "answer": "red", "metadata": {"source_dataset": "words", "seen": {1, 2}}}


class Uneven(Sums):
    """Every other entry is of a kind that has few questions."""

    def __getitem__(self, place):
        return Sums(seed=self.seed, largest=5 if place % 2 else 999)[place]


DATASETS = {"sums": (Sums, Sums), "words": (Words, Words), "uneven": (Uneven, Uneven)}
