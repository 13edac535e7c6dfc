"""`--actor.fused_head` against OpenRLHF's own `Actor`, on small models of several families, without ranks."""

import functools
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from openrlhf_stare import worker

worker.install()

from openrlhf.models.actor import Actor  # noqa: E402

from openrlhf_stare.actor_group import fused_head  # noqa: E402
from openrlhf_stare.actor_group.fused_head import FusedHeadActor, actor_class  # noqa: E402
from openrlhf_stare.algorithms import fused_head as mathematics  # noqa: E402

WORDS, LENGTHS, LONGEST, RESPONSE = 600, (9, 14, 11), 14, 7
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
}
FAMILIES = {
    "qwen2": {},
    "gemma2": {"final_logit_softcapping": 2.0, "query_pre_attn_scalar": 16},
    "cohere": {"logit_scale": 3.0},
    "granite": {"logits_scaling": 0.25},
}


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch):
    monkeypatch.setattr(mathematics, "_BLOCK_LOGITS", 42 * 100)


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    @functools.cache
    def model_of(family: str, tied: bool) -> str:
        folder = tmp_path_factory.mktemp(family)
        config = AutoConfig.for_model(family, **SIZES, **FAMILIES[family], tie_word_embeddings=tied)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            parameter.data.mul_(3)  # or all distributions are as good as uniform
        model.to(torch.bfloat16).save_pretrained(folder)
        return str(folder)

    return model_of


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sequences padded on the left, action mask and attention mask; a response ends before its sequence does."""
    random = torch.Generator().manual_seed(3)
    attention = torch.stack([torch.arange(LONGEST) >= LONGEST - length for length in LENGTHS]).long()
    sequences = torch.randint(4, WORDS, attention.shape, generator=random) * attention
    action = torch.ones(len(LENGTHS), RESPONSE, dtype=torch.long)
    action[0, -2:] = 0
    return sequences, action, attention


def results(way, model: str, dtype: str, packed: bool, bonus: float | None, temperature: float = 0.7, **setting):
    """Log-probs and entropies of the action tokens, and every parameter's gradient of a loss."""
    actor = way(model, "sdpa", packing_samples=packed, temperature=temperature)
    if dtype == "fp32":
        actor.float()
    if setting.get("checkpointing"):
        actor.gradient_checkpointing_enable({"use_reentrant": False})
    actor.train()
    sequences, action, attention = batch()
    log_probs, output = actor(sequences, action, attention, return_output=True, return_entropy=bonus is not None)
    advantages = torch.randn(action.shape, generator=torch.Generator().manual_seed(4))
    loss, mask = -(log_probs * advantages).sum(), action.bool()
    found = {"log-probs": log_probs[mask]}
    if bonus is not None:
        entropies = output.entropy[:, -RESPONSE:]
        found["entropies"] = entropies[mask]
        if bonus:
            loss = loss - bonus * (entropies * action).sum()
    loss.backward()
    found |= {name: parameter.grad for name, parameter in actor.model.named_parameters()}
    return {name: value.detach().double() for name, value in found.items()}


def fused(bonus: float | None):
    return functools.partial(FusedHeadActor, lambda: bool(bonus))


def errors(found: dict, truth: dict) -> dict[str, float]:
    assert found.keys() == truth.keys()
    return {name: ((found[name] - value).norm() / value.norm()).item() for name, value in truth.items()}


CASES = [
    *(("qwen2", tied, packed, bonus) for tied in (False, True) for packed in (False, True) for bonus in (None, 0.3)),
    *((family, family != "granite", packed, 0.3) for family in ("gemma2", "cohere", "granite") for packed in (0, 1)),
]


@pytest.mark.parametrize("family, tied, packed, bonus", CASES)
def test_in_float32_it_is_openrlhfs(model_of, family, tied, packed, bonus):
    model = model_of(family, tied)
    theirs = results(Actor, model, "fp32", packed, bonus)
    ours = results(fused(bonus), model, "fp32", packed, bonus)
    assert max(errors(ours, theirs).values()) < 1e-5


def test_in_bfloat16_log_probs_and_entropies_are_as_close_to_float32(model_of):
    model = model_of("qwen2", False)
    truth = results(Actor, model, "fp32", True, 0.3)
    ours = errors(results(fused(0.3), model, "bf16", True, 0.3), truth)
    theirs = errors(results(Actor, model, "bf16", True, 0.3), truth)
    for name in ("log-probs", "entropies", "lm_head.weight", "model.embed_tokens.weight"):
        assert ours[name] <= 1.02 * theirs[name], (name, ours[name], theirs[name])


def test_with_gradient_checkpointing(model_of):
    model = model_of("qwen2", True)
    plain = results(fused(0.3), model, "fp32", False, 0.3)
    again = results(fused(0.3), model, "fp32", False, 0.3, checkpointing=True)
    assert max(errors(again, plain).values()) < 1e-6


def test_an_entropy_that_no_loss_takes_has_no_gradient(model_of):
    model = model_of("qwen2", False)
    without = results(fused(None), model, "fp32", False, None)
    kept = results(fused(0), model, "fp32", False, 0)
    assert all(torch.equal(kept[name], value) for name, value in without.items())
    # Were the loss to take it all the same, nothing would come of it.
    dropped = results(fused(0), model, "fp32", False, 0.3)
    assert all(torch.equal(dropped[name], value) for name, value in without.items())


def test_the_log_prob_pass_computes_the_action_tokens_alone_and_leaves_the_model_as_it_was(model_of, monkeypatch):
    seen = []
    own = fused_head.fused_log_probs
    monkeypatch.setattr(
        fused_head, "fused_log_probs", lambda *args: (seen.append((args[2] >= 0).sum()), own(*args))[1]
    )
    sequences, action, attention = batch()
    actor = fused(None)(model_of("cohere", True), "sdpa", "bf16", packing_samples=True)
    config = actor.model.config.to_dict()
    with torch.no_grad():
        log_probs = actor(sequences, action, attention)
    assert seen == [action.sum()] and not log_probs[action == 0].any()
    assert actor.model.config.to_dict() == config and actor.model.logit_scale == 3.0
    assert actor.model(sequences).logits.shape == (*sequences.shape, WORDS)


def test_a_pass_that_wants_logits_is_refused(model_of):
    sequences, _, attention = batch()
    with pytest.raises(ValueError, match="makes no logits"):
        fused(None)(model_of("qwen2", True), "sdpa", "bf16")(sequences, None, attention, return_output=True)


def test_a_model_that_does_more_to_its_logits_is_refused_in_its_first_pass(model_of):
    actor = fused(None)(model_of("qwen2", True), "sdpa", "bf16")
    actor.model.register_forward_hook(lambda model, args, output: output | {"logits": output.logits * 2})
    with pytest.raises(ValueError, match="Qwen2ForCausalLM, which does more to its logits"):
        actor(*batch())


def test_a_head_of_another_kind_is_refused(model_of, monkeypatch):
    own = AutoModelForCausalLM.from_pretrained

    def with_another_head(*args, **kwargs):
        model = own(*args, **kwargs)
        model.set_output_embeddings(torch.nn.Sequential(model.get_output_embeddings()))
        return model

    monkeypatch.setattr("openrlhf.models.actor.AutoModelForCausalLM.from_pretrained", with_another_head)
    with pytest.raises(ValueError, match="whose head is no plain linear layer"):
        fused(None)(model_of("qwen2", False), "sdpa", "bf16")


def test_without_the_flag_the_actor_is_openrlhfs(model_of):
    arguments = SimpleNamespace(actor=SimpleNamespace(fused_head=False, entropy_coef=None))
    assert actor_class(arguments) is Actor
    arguments.actor.fused_head = True
    actor = actor_class(arguments)(model_of("qwen2", True), "sdpa", "bf16")
    assert isinstance(actor, FusedHeadActor) and not actor.has_entropy_loss()
    arguments.actor.entropy_coef = 0.01  # as a method sets it for a rollout
    assert actor.has_entropy_loss()
