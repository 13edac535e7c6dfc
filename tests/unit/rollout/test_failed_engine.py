"""The error of vLLM's own processes, which the engine's actor finds in its log."""

from openrlhf_stare import worker

worker.install()

from openrlhf_stare.rollout.engine import first_logged_error  # noqa: E402

LOG = """\
INFO 11-22 10:00:00 [utils.py:1] starting
(EngineCore_DP0 pid=7) INFO 11-22 10:00:01 [core.py:2] loading
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3] EngineCore failed to start.
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3] Traceback (most recent call last):
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3]   File "core.py", line 1, in run
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3]     raise ValueError(text)
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3] a.b.ValidationError: 1 validation error for ModelConfig
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3]   2048 is more than 64
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3]     For further information visit the page
"""
MORE = """\
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3]
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3] During handling of the above exception, another occurred:
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3] Traceback (most recent call last):
(EngineCore_DP0 pid=7) ERROR 11-22 10:00:02 [core.py:3] RuntimeError: gone
(EngineCore_DP0 pid=7) Process EngineCore_DP0:
"""
WHOLE = """\
a.b.ValidationError: 1 validation error for ModelConfig
  2048 is more than 64
    For further information visit the page"""


def test_the_first_error_is_found_with_all_its_lines():
    assert first_logged_error(LOG) == WHOLE
    assert first_logged_error(LOG + MORE) == WHOLE


def test_a_log_without_an_error():
    assert first_logged_error("INFO 11-22 10:00:00 [utils.py:1] ready\n") is None
