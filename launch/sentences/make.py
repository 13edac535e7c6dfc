"""Makes the prompts of the sentences task: python launch/sentences/make.py OUT_DIR [--prompts N] [--held-out N]

OUT_DIR/train.jsonl and OUT_DIR/eval.jsonl hold lines with the keys input, label and datasource. No pair of words is in
both, and none is there twice.
"""

import argparse
import json
import random
import sys
from pathlib import Path

QUESTION = 'Use the words "{}" and "{}" in one short sentence of five to ten words.'
NOUNS = """
apple arm baby bag ball bank basket bath beach bear bed bell bench bird boat bone book bottle bowl box boy branch
bread bridge brother bucket bus butter button cake camera camp candle captain car card carpet castle cat chair cheese
cherry chicken child church circle city clock cloud coat coffee coin corner cotton country cow cup curtain daughter
day desk dinner dog doll door dress drum duck ear earth egg elephant engine evening eye family farm farmer father
feather field finger fire flag floor flower foot forest fork fox friend frog fruit garden gate ghost gift girl glass
glove goat gold grandmother grass guitar hair hammer hand hat head heart hill holiday honey horse hospital hotel house
ice insect iron island jacket jar jewel juice key kitchen kite knife ladder lake lamp leaf leg lemon letter library
lion market meal meat milk mirror money monkey moon morning mother mountain mouse mouth music nail neck needle nest
night noise nose nurse ocean office onion orange oven owl page painter palace paper parrot path pen pencil people
piano picture pig pillow plane plate pocket poem police pond potato queen rabbit radio rain river road robot rock roof
room rope rose salt sand school sea seat shadow sheep shelf ship shirt shoe shop silver singer sister sky snake snow
soap sock soldier son song soup spider spoon square star station stone storm story street student sugar suit summer
sun table tail teacher tent thief thread throat tiger toast tooth tower town toy train tree truck uncle umbrella
valley village violin voice wagon wall water wheel wind window wine wing winter wolf woman wood
""".split()


def make_prompts(count: int, seed: int) -> list[dict[str, str]]:
    """`count` prompts with different pairs of words.

    Raises:
        ValueError: there are not so many.
    """
    pairs = [(first, second) for first in NOUNS for second in NOUNS if first < second]
    if count > len(pairs):
        raise ValueError(f"{count} prompts are more than the {len(pairs)} pairs of words: ask for fewer")
    draw = random.Random(seed)
    rows = []
    for pair in draw.sample(pairs, count):
        words = draw.sample(pair, 2)
        rows.append({"input": QUESTION.format(*words), "label": " ".join(words), "datasource": "sentences"})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--prompts", type=int, default=240, help="lines of train.jsonl (default: %(default)s)")
    parser.add_argument("--held-out", type=int, default=32, help="lines of eval.jsonl (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        rows = make_prompts(args.prompts + args.held_out, args.seed)
    except ValueError as error:
        print(f"make: {error}", file=sys.stderr)
        return 2
    args.out_dir.mkdir(parents=True, exist_ok=True)
    for name, part in {"train": rows[: args.prompts], "eval": rows[args.prompts :]}.items():
        (args.out_dir / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return 0


if __name__ == "__main__":
    sys.exit(main())
