"""TPO in OpenRLHF's real actor group against one process: what test_target_policy.py compares.

The actor group trains in float32, so that a difference is a difference and no rounding of bfloat16. One process does
the same with autograd over the whole batch and torch's AdamW. Adam's epsilon is so large that its step is nearly the
gradient, whose scale would otherwise not matter.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from harness import ActorGroup, fixed_experiences
from openrlhf.trainer import ppo_trainer
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from transformers import AutoModelForCausalLM

from openrlhf_stare import target_distribution, target_policy_loss
from openrlhf_stare.tpo.target import sequence_log_probs

PROMPTS, SAMPLES, EPOCHS = 8, 4, 3
LEARNING_RATE, EPSILON, ETA = 0.02, 1.0, 0.5
RESPONSES = PROMPTS * SAMPLES
LEFT_OUT = (1, 8, 9, 10, 11)  # of the third prompt every response
FLAGS = f"""--policy_loss tpo --tpo.eta {ETA} --actor.adam.lr {LEARNING_RATE} --actor.adam.eps {EPSILON}
--actor.max_norm 0 --rollout.batch_size {PROMPTS} --rollout.n_samples_per_prompt {SAMPLES} --rollout.micro_batch_size 2
--train.batch_size {RESPONSES} --train.max_epochs {EPOCHS}""".split()


def rollout(model: str) -> list[Experience]:
    """Responses with the policy's own log-probs, random rewards, five of them left out and equal ones in a prompt."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    responses = fixed_experiences(RESPONSES)
    rewards = torch.randint(0, 3, (RESPONSES,), generator=torch.Generator().manual_seed(5)).float()
    rewards[-SAMPLES:] = 0.1
    for number, response in enumerate(responses):
        if number in LEFT_OUT:
            response.action_mask = torch.zeros_like(response.action_mask)
        with torch.no_grad():
            response.action_log_probs = token_log_probs(policy, response) * response.action_mask
        response.rewards, response.prompts = rewards[number : number + 1], [f"prompt {number // SAMPLES}"]
    return responses


def token_log_probs(policy, response: Experience) -> torch.Tensor:
    log_probs = policy(response.sequences).logits[:, :-1].log_softmax(dim=-1)
    return log_probs.gather(-1, response.sequences[:, 1:, None]).squeeze(-1)


def in_one_process(model: str, epochs: int = EPOCHS) -> tuple[dict[str, torch.Tensor], list[float], torch.Tensor]:
    """The policy's weights after the training, the loss before each step, and the target (P, K)."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), eps=EPSILON, weight_decay=0
    )
    responses, losses = rollout(model), []
    valid = torch.stack([response.action_mask.any() for response in responses]).view(PROMPTS, SAMPLES)
    rewards = torch.cat([response.rewards for response in responses]).view(PROMPTS, SAMPLES)

    def of_groups(log_probs):
        pairs = zip(log_probs, responses, strict=True)
        own = [sequence_log_probs(values, response.action_mask, length_normalize=True) for values, response in pairs]
        return torch.cat(own).view(PROMPTS, SAMPLES)

    old = of_groups([response.action_log_probs for response in responses])
    target = target_distribution(old, rewards, valid=valid, eta=ETA)
    for _ in range(epochs):
        ell = of_groups([token_log_probs(policy, response) for response in responses])
        loss = target_policy_loss(ell, target, valid=valid)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {name: parameter.detach() for name, parameter in policy.named_parameters()}, losses, target


def train(group: ActorGroup, flags: list[str]) -> tuple[dict[str, torch.Tensor], list[dict]]:
    """The weights after the training and the status of every rank, the data going OpenRLHF's way to the ranks."""
    group.start([*FLAGS, *flags])
    maker = SimpleNamespace(args=group.args, tokenizer=SimpleNamespace(pad_token_id=0))
    batches = RemoteExperienceMaker.split_rollout_samples(maker, rollout(group.model))
    group.forward(batches)
    if group.args.train.dynamic_batch_enable:
        batches = ppo_trainer.balance_experiences(batches, group.args)
    statuses = group.fit(batches)
    return group.parameters(), statuses
