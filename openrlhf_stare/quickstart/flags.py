"""The flags of a job on the addends task: `python -m openrlhf_stare.quickstart.flags MODEL PROMPTS RUN`

The command prints them, each word on a line of its own, for the studies' scripts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

PROMPTS_PER_STEP = 16
REWARD = str(Path(__file__).with_name("reward.py"))


def words(model: str, prompts: str, run: str, reward: str, prompts_per_step: int) -> list[str]:
    """The words of train_ray's command line for a job that logs and saves under the folder `run`.

    Args:
        model: folder of the model.
        prompts: its prompts, a file with a line of JSON for each.
        run: the folder, whose name is that of the run.
        reward: file with the reward function.
        prompts_per_step: of which each gets 8 responses.
    """
    flags = {
        # Two actors and one engine; without a reference model, since there is no KL penalty.
        "--actor.num_gpus_per_node": 2,
        "--vllm.num_engines": 1,
        "--algo.kl.init_coef": 0,
        "--ds.zero_stage": 3,
        "--ds.param_dtype": "bf16",
        "--actor.model_name_or_path": model,
        "--data.prompt_dataset": prompts,
        "--data.input_key": "input",
        "--data.label_key": "label",
        "--data.max_len": 32,
        "--reward.remote_url": reward,
        # With 16 prompts one optimizer step on all 128 responses: 64 for each of the two actors.
        "--rollout.batch_size": prompts_per_step,
        "--rollout.n_samples_per_prompt": 8,
        "--rollout.min_new_tokens": 0,
        "--rollout.max_new_tokens": 8,
        "--rollout.micro_batch_size": 64,
        "--train.batch_size": 128,
        "--train.micro_batch_size": 64,
        "--actor.adam.lr": "3e-4",
        "--actor.lr_scheduler": "constant",
        "--actor.lr_warmup_ratio": 0,
        # The token-level correction logs vllm_kl, which stays near 0 while vLLM has the actor's weights.
        "--advantage_estimator": "group_norm",
        "--algo.advantage.is_correction_level": "token",
        "--logger.tensorboard_dir": f"{run}/tensorboard",
        "--logger.wandb.run_name": Path(run).name,
        "--ckpt.path": f"{run}/checkpoints",
        "--ckpt.output_dir": f"{run}/model",
        "--console": "compact",
    }
    return [str(word) for pair in flags.items() for word in pair]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("prompts")
    parser.add_argument("run")
    parser.add_argument("--reward", default=REWARD)
    parser.add_argument("--prompts-per-step", type=int, default=PROMPTS_PER_STEP)
    print("\n".join(words(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
