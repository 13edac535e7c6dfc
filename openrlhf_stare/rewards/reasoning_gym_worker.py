"""Scores answers for `reasoning_gym_reward`, which starts this file by its path, as `workers` says.

A question is `[entry, answer]`; the reply is `{"score": 0.5}`, or `{"raised": "ValueError: …"}` where the scorer did.

Some of reasoning-gym's scorers read an answer with sympy's `parse_expr`, which is Python's `eval`. So `eval` takes
arithmetic alone here, with the names of `NAMES`: an answer with another name, an attribute or code of its own is not
run and gets 0. Besides, this process may write no file, start no process and open no socket.
"""

import builtins
import logging
import os
import sys
from types import CodeType
from typing import Any

from reasoning_gym import get_score_answer_fn

from openrlhf_stare.rewards.workers import serve

FORBIDDEN = ("os.", "shutil.", "socket.", "subprocess.", "ctypes.", "signal.", "pty.", "fcntl.")
ALLOWED = ("os.listdir", "os.scandir", "os.walk")  # importing looks for files
# What sympy makes of an expression, and the functions and constants that one may name.
NAMES = frozenset(
    """Add Mul Pow Symbol Integer Float Rational Function Abs sqrt exp log ln factorial Min Max sin cos tan asin acos
    atan sinh cosh tanh pi E I oo True False None""".split()
)
_eval = builtins.eval
_scorers: dict[str, Any] = {}


class NotArithmetic(BaseException):
    """An answer that was to be evaluated is more than an expression. Not an Exception, which scorers swallow."""


def arithmetic(source: str | CodeType, *scopes: Any) -> Any:
    """In the place of `eval`: evaluates an expression with no other names than NAMES and the scorer's own locals.

    Raises:
        NotArithmetic: it has another name or an attribute, or code inside, as a lambda or a comprehension.
    """
    code = compile(source.strip(), "<answer>", "eval") if isinstance(source, str) else source
    names = NAMES.union(*scopes[1:])
    # From Python 3.12 on a comprehension is no code of its own, but it has variables.
    has_code = bool(code.co_varnames) or any(isinstance(part, CodeType) for part in code.co_consts)
    if has_code or not names.issuperset(code.co_names):
        raise NotArithmetic
    return _eval(code, *scopes)


def score(entry: dict, answer: str) -> dict[str, Any]:
    """What the scorer of the entry's task says of the answer."""
    name = entry["metadata"]["source_dataset"]
    try:
        if name not in _scorers:
            _scorers[name] = get_score_answer_fn(name)  # which imports, with eval as it was
        vars(builtins)["eval"] = arithmetic
        return {"score": float(_scorers[name](answer=answer, entry=entry))}
    except NotArithmetic:
        return {"score": 0.0}
    except Exception as error:  # theirs, whatever it is
        return {"raised": f"{type(error).__name__}: {' '.join(str(error).split()):.200}"}
    finally:
        vars(builtins)["eval"] = _eval


def refuse(event: str, arguments: tuple) -> None:
    """Python's audit hook: raise PermissionError at what an answer has no business to do."""
    writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or (event.startswith(FORBIDDEN) and event not in ALLOWED):
        raise PermissionError(f"an answer must not do that ({event})")


if __name__ == "__main__":
    logging.disable()
    sys.addaudithook(refuse)
    serve(score, float(sys.argv[1]))
