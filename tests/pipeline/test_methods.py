"""Methods through the whole stack: a job of three steps, and one that goes on from the second of them in async mode.

A job takes half a minute to start, so this is a file of one's own; actor_group/test_actor_group.py trains with every
method. ALL_METHODS=1 bash launch/test.sh tests/pipeline/test_methods.py tries them all as jobs.
"""

import os

import pytest
from jobs import CONTROL_FIGURES, OFF_POLICY_KL, ROOT, Job, assert_sound, job_flags, run_job

from openrlhf_stare.methods import base

OWN = str(ROOT / "tests/pipeline/methods/surprisal_weights.py")
TARGET, K_I = 3.0, 0.1  # no policy over 16 tokens has as much entropy, so the effort grows with every rollout
ALL = base.names() if os.environ.get("ALL_METHODS") else []


@pytest.mark.parametrize("policy_loss", [*ALL, OWN], ids=base.part_of)
def test_a_method_trains_and_its_controller_goes_on_after_a_resume(addends, tmp_path, policy_loss):
    # Two optimizer steps on a rollout, since kl_cov and ce_gppo do nothing in the first.
    shared = ["--policy_loss", policy_loss, "--train.batch_size", "16", "--train.micro_batch_size", "8"]
    shared += ["--data.max_samples", "12", "--ckpt.save_steps", "1", "--ckpt.path", str(tmp_path / "checkpoints")]
    strength = base.first_strength(policy_loss)
    if strength:
        shared += f"--entropy.schedule pi --entropy.target {TARGET} --entropy.k_p 0 --entropy.k_i {K_I}".split()

    first = run_job([*job_flags(addends, tmp_path / "first"), *shared], tmp_path / "first", timeout=480)
    assert_sound(first, steps=3)
    (tmp_path / "checkpoints/_actor/latest").write_text("global_step2")  # as if the job had ended in its third step
    resumed = [*job_flags(addends, tmp_path / "second"), *shared, "--ckpt.load_enable", "--train.async_enable"]
    second = run_job(resumed, tmp_path / "second", timeout=480)
    assert_sound(second, steps=1, vllm_kl=OFF_POLICY_KL)

    for job in (first, second):
        assert CONTROL_FIGURES <= job.scalars.keys()
        assert all(0 < share <= 1 for share in job.scalars["entropy/authority"])
    if strength:
        before = integral(first, 2)
        assert first.scalars["entropy/effort"] == pytest.approx([integral(first, n) for n in (1, 2, 3)])
        assert second.scalars["entropy/effort"] == pytest.approx([integral(second, 1, before)])
        assert len(set(first.scalars[strength])) == 3 and second.scalars["entropy/gate_on"] == [1]


def integral(job: Job, rollouts: int, start: float = 0.0) -> float:
    """PI's sum after the first rollouts of a job."""
    return start + sum(K_I * (TARGET - entropy) / TARGET for entropy in job.scalars["entropy/mean"][:rollouts])
