"""Which tokens each method acts on, by hand: ties, ends of the range, and rollouts with nothing to act on."""

import dataclasses
import math

import pytest
import torch

from openrlhf_stare.algorithms.covariance import pooled_means, share_count, token_covariance
from openrlhf_stare.algorithms.draw import places_of
from openrlhf_stare.methods import base
from openrlhf_stare.methods.clip_cov import ClipCovOptions

# A - mean A is 1 or -1 and l - mean l is 1, 0 or -1, so c = 1, 0, -1, -1, 0, 1.
LOG_PROBS = [-1.0, -2.0, -3.0, -1.0, -2.0, -3.0]
ADVANTAGES = [2.0, 2.0, 2.0, 0.0, 0.0, 0.0]


def tokens(log_probs=LOG_PROBS, advantages=ADVANTAGES, entropies=None) -> base.Tokens:
    log_probs, advantages = torch.tensor(log_probs), torch.tensor(advantages)
    entropies = None if entropies is None else torch.tensor(entropies)
    return base.Tokens(log_probs, advantages, torch.ones_like(log_probs, dtype=torch.bool), entropies)


def opened(name: str, of: base.Tokens, strength: float | None = None, **options) -> tuple[base.Method, dict]:
    """The method with its strength at the start, or at `strength`, and its figures."""
    method = base.find(name)(base.find(name).Options(**options))
    figures = method.open_rollout(
        of, {s.name: s.start if strength is None else strength for s in method.strengths}, None
    )
    return method, figures


def weights(name: str, of: base.Tokens, strength: float | None = None, **options) -> list[float] | None:
    found = opened(name, of, strength, **options)[0].weights(of)
    return found if found is None else found.tolist()


def test_the_covariance_of_a_token():
    of = tokens()
    means = pooled_means(of.log_probs, of.advantages, None)
    assert means == (6, -2.0, 1.0)
    assert token_covariance(of.log_probs, of.advantages, means).tolist() == [1, 0, -1, -1, 0, 1]
    assert pooled_means(torch.empty(0), torch.empty(0), None) == (0, 0.0, 0.0)


def test_a_mean_is_not_lost_in_float32():
    n = 2**24 + 2  # from here on float32 no longer counts
    assert pooled_means(torch.ones(n), torch.ones(n), None) == (n, 1.0, 1.0)


def test_how_many_tokens_a_share_means():
    assert [share_count(n, 0.002) for n in (0, 1, 499, 999, 1000, 1500)] == [0, 1, 1, 1, 2, 3]
    assert [share_count(10, share) for share in (0.0, 1e-9, 0.19, 1.0)] == [0, 1, 1, 10]
    assert share_count(100, 0.29) == 29  # 0.29 * 100 is 28.999999999999996


def test_kl_cov_holds_the_tokens_of_largest_covariance_with_all_ties():
    assert weights("kl_cov", tokens(), share=0.2) == [0, 1, 1, 1, 1, 0]  # k = 1, and two have the largest c
    assert weights("kl_cov", tokens(), share=0.6) == [0, 1, 1, 1, 1, 0]  # k = 3: c = 0 is not held
    assert weights("kl_cov", tokens(), share=0.9) == [0, 1, 0, 0, 1, 0]  # k = 5, c = -1, whose ties are in
    assert weights("kl_cov", tokens(), share=1.0) == [0, 0, 0, 0, 0, 0]
    figures = opened("kl_cov", tokens(), share=0.2)[1]
    assert figures == {"kl_cov/threshold": 1.0, "kl_cov/held_ratio": pytest.approx(2 / 6)}


def test_kl_covs_penalty_is_the_whole_loss_of_the_held_tokens():
    of = tokens()
    method, _ = opened("kl_cov", of, share=0.2, coefficient=0.5)
    log_ratio = torch.tensor([0.5, 0.1, 0.1, 0.1, 0.1, -0.5])
    expected = torch.tensor([0.25 - 2 * math.exp(0.5), 0, 0, 0, 0, 0.25])
    torch.testing.assert_close(method.penalty(of.log_probs + log_ratio, of), expected)
    assert method.penalty(of.log_probs + 1000, of).isfinite().all()


def test_kl_cov_without_advantages_holds_no_token():
    of = tokens(advantages=[0.0] * 6)
    for share in (0.002, 0.5):
        method, figures = opened("kl_cov", of, share=share)
        assert method.weights(of).tolist() == [1] * 6 and figures["kl_cov/held_ratio"] == 0
        assert not method.penalty(of.log_probs + 1, of).any()


def test_clip_cov_draws_from_the_open_band():
    band = {"low": 0.5, "high": 5.0}
    assert weights("clip_cov", tokens(), share=1.0, bound=1.0, **band) == [0, 1, 1, 1, 1, 0]
    assert weights("clip_cov", tokens(), share=1.0, bound=1.0, low=1.0) == [1] * 6  # c = 1 is not above 1
    assert weights("clip_cov", tokens(), share=1.0, bound=1.0, low=0.5, high=1.0) == [1] * 6  # nor below 1
    assert sum(weights("clip_cov", tokens(), **band)) == 5  # one at least is drawn
    assert weights("clip_cov", tokens(), strength=0.0, **band) is None
    figures = opened("clip_cov", tokens(), **band)[1]
    assert figures == {"clip_cov/band_ratio": pytest.approx(2 / 6), "clip_cov/dropped_ratio": pytest.approx(1 / 6)}
    assert weights("clip_cov", tokens(advantages=[0.0] * 6)) == [1] * 6


def test_clip_covs_draw_is_of_its_size_and_its_seed():
    random = torch.Generator().manual_seed(0)
    of = base.Tokens(
        -3 * torch.rand(1000, generator=random),
        torch.randn(1000, generator=random),
        torch.ones(1000, dtype=torch.bool),
    )
    drawn = [opened("clip_cov", of, share=0.02, low=0.2, seed=seed)[0].weights(of) == 0 for seed in (0, 0, 1)]
    assert [int(each.sum()) for each in drawn] == [20, 20, 20]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert int((opened("clip_cov", of, strength=0.05, low=0.2)[0].weights(of) == 0).sum()) == 50


def test_clip_cov_draws_as_many_of_tokens_that_are_alike():
    """A fifth of the tokens are certain, of responses with one advantage: c is 2, of the others 0.125."""
    alike = torch.arange(10_000).reshape(100, 100) % 5 == 0
    places = places_of(range(100), 100)
    columns = torch.where(alike, 0.0, -1.25), torch.where(alike, 2.0, -0.5), torch.ones_like(alike)
    batch = base.Tokens(*columns, places=places)
    pool = base.Tokens(*(column.flatten() for column in columns), places=places.flatten())
    method, figures = opened("clip_cov", pool)
    assert figures == {"clip_cov/band_ratio": 0.2, "clip_cov/dropped_ratio": 0.0002}
    dropped = method.weights(batch) == 0
    assert dropped.sum() == 2 and alike[dropped].all()
    padded = (torch.nn.functional.pad(column, (0, 3)) for column in columns)
    assert torch.equal(method.weights(base.Tokens(*padded, places=places_of(range(100), 103)))[:, :100] == 0, dropped)
    without = dataclasses.replace(pool, places=None)
    assert opened("clip_cov", without)[1]["clip_cov/dropped_ratio"] == 0.2


def test_clip_cov_refuses_an_empty_band():
    with pytest.raises(ValueError, match="^high 1.0 is not above low 2.0: give a range"):
        ClipCovOptions(low=2.0, high=1.0)


def test_high_entropy_keeps_the_share_of_highest_entropy_with_all_ties():
    of = tokens(entropies=[0.1, 0.5, 0.3, 0.2, 0.4, 0.0])
    assert weights("high_entropy", of, share=0.2) == [0, 1, 0, 0, 1, 0]  # from 0.4 on, the place 4 of 0 to 5
    assert weights("high_entropy", of, share=0.19) == [0, 1, 0, 0, 0, 0]  # the place 4.05
    assert weights("high_entropy", of, share=0.5) == [0, 1, 1, 0, 1, 0]  # from 0.25 on
    assert weights("high_entropy", of, strength=1.0) is None
    near = tokens(entropies=[0.1, 0.2, 0.3, 0.5, 0.500001])  # within the rounding of the threshold
    assert opened("high_entropy", near, share=0.2)[1]["high_entropy/kept_ratio"] == pytest.approx(2 / 5)
    assert weights("high_entropy", near, share=0.2) == [0, 0, 0, 1, 1]
    ties = tokens(entropies=[0.5, 0.5, 0.5, 0.0, 0.0, 0.0])
    assert weights("high_entropy", ties, share=0.1, bound=0.01) == [1, 1, 1, 0, 0, 0]
    assert weights("high_entropy", tokens(entropies=[0.0] * 6)) == [1] * 6
    assert weights("high_entropy", tokens([-1.0], [1.0], [0.7])) == [1]
    assert opened("high_entropy", of, share=0.5)[1]["high_entropy/kept_ratio"] == 0.5


def test_high_entropy_keeps_the_token_at_the_threshold_whatever_the_training_pass_rounds():
    method, _ = opened("high_entropy", tokens(entropies=[0.1, 0.5, 0.3, 0.2, 0.4, 0.0]), share=0.2)
    rounded = tokens(entropies=[0.1, 0.5, 0.3, 0.2, 0.4 - 2e-6, 0.0])
    assert method.weights(rounded).flatten().tolist() == [0, 1, 0, 0, 1, 0]
    assert method.weights(tokens(entropies=[0.1, 0.5, 0.3, 0.2, 0.399, 0.0])).flatten().tolist() == [0, 1, 0, 0, 0, 0]


def test_high_entropys_threshold_is_torchs_quantile():
    random = torch.Generator().manual_seed(2)
    for n in (2, 11, 101, 1000):
        entropies = torch.rand(n, generator=random)
        of = base.Tokens(entropies, entropies, torch.ones(n, dtype=torch.bool), entropies)
        for share in (0.05, 0.2, 0.3, 0.9):
            threshold = opened("high_entropy", of, share=share)[1]["high_entropy/threshold"]
            assert threshold == pytest.approx(torch.quantile(entropies.double(), 1 - share).item(), abs=1e-7)


def test_sign_weights():
    of = tokens(advantages=[2.0, 0.5, 0.0, -0.0, -1.0, -3.0])
    assert weights("sign_weights", of, alpha=0.5) == [0.5, 0.5, 1, 1, 1.5, 1.5]
    assert weights("sign_weights", of, strength=0.0) is None
    assert weights("sign_weights", of, alpha=1.0) == [0, 0, 1, 1, 2, 2]


def test_sign_weights_with_a_negative_alpha_strengthen_good_responses():
    assert weights("sign_weights", tokens(advantages=[2.0, 0.5, 0.0, -0.0, -1.0, -3.0]), strength=-0.5) == [
        *(1.5, 1.5, 1, 1, 0.5, 0.5)
    ]


def test_repo_weighs_by_surprisal_and_turns_no_advantage_over():
    of = tokens(log_probs=[-1.0, -2.0, -3.0, -1.0, -2.0, 0.0], advantages=[2.0, 0.5, 0.0, -0.1, -3.0, 1.0])
    assert weights("repo", of, strength=0.25) == [1.25, 1.5, 1.0, 0.75, 0.5, 1.0]
    assert weights("repo", of, strength=1.0) == [2.0, 3.0, 1.0, 0.0, 0.0, 1.0]
    assert weights("repo", of, strength=-0.25) == [0.75, 0.5, 1.0, 1.25, 1.5, 1.0]
    assert weights("repo", of, strength=-1.0) == [0.0, 0.0, 1.0, 2.0, 3.0, 1.0]
    assert weights("repo", of, strength=0.0) is None
    assert opened("repo", of, strength=1.0)[1] == {
        "repo/zero_ratio": pytest.approx(2 / 6),
        "repo/mean_weight": pytest.approx(7 / 6),
    }
    assert opened("repo", of, strength=0.0)[1] == {"repo/zero_ratio": 0, "repo/mean_weight": 1}


def test_clip_higher_sets_the_upper_clip_range():
    method = base.find("clip_higher")(clip_range=(0.2, 0.25))
    (strength,) = method.strengths
    assert (strength.neutral, strength.start, strength.bound, strength.counter) == (0.25, 0.28, 1.0, 0.2)
    for value in (0.25, 0.28, 1.0, 0.2):
        assert method.open_rollout(tokens(), {"eps_high": value}, None) == {}
        assert method.surrogate_range() == (0.2, value) and method.weights(tokens()) is None
    assert base.find("clip_higher")(clip_range=(0.2, 0.2)).strengths[0].counter is None  # it cannot get narrower


def test_stare_under_pi_has_defaults_of_its_own_and_gives_way_to_what_is_given():
    def options(schedule: str, **given) -> tuple:
        made = base.find("stare").options_under(schedule, lambda part: given if part == "stare" else {})
        return made.variant, made.top_p_ratio, made.w_max, made.m_min

    assert options("pi") == ("C2", 0.05, 60.0, 0.3)
    assert options("pi", w_max=30.0, variant="O1") == ("O1", 0.05, 30.0, 0.3)
    for schedule in ("gate", "adaptive", "open"):
        assert options(schedule) == ("O1", 0.1, 1.5, 0.5)
    assert base.option_default(base.find("stare"), "w_max") == "1.5; 60.0 under pi"
    assert base.option_default(base.find("stare"), "reweight_w") == "1.1"


def test_stare_from_above_weighs_surprising_tokens_of_good_responses_less_and_of_bad_ones_more():
    of = tokens(log_probs=[-1.0, -2.0, -3.0, -1.0, -2.0, -3.0], advantages=[1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    method = base.find("stare").options_under("pi", lambda part: {"top_p_ratio": 0.3})
    stare = base.find("stare")(method)
    at_counter = {strength.name: strength.at(-1.0) for strength in stare.strengths}
    figures = stare.open_rollout(of, at_counter, None)
    assert stare.weights(of).tolist() == pytest.approx([1, 1, 1 / 60, 1, 1, 1 / 0.3])
    assert (figures["stare/positive_reweight_ratio"], figures["stare/negative_reweight_ratio"]) == (1 / 6, 1 / 6)


def test_ce_gppo_adds_nothing_to_tokens_that_are_not_clipped():
    of = tokens([-1.0] * 6, [1.0, -1.0, 0.0, 1.0, -1.0, 0.0])
    method, figures = opened("ce_gppo", of)
    assert figures == {} and method.weights(of) is None
    inside = of.log_probs + torch.tensor([0.1, -0.1, 0.1, -0.9, 0.9, 0.9])  # the last three are on the other side
    assert not method.penalty(inside, of).any()
    log_probs = (of.log_probs + torch.tensor([0.9, -0.9, 0.9, 0.9, -0.9, -0.9])).requires_grad_()
    penalty = method.penalty(log_probs, of)
    # The constants -1.2 and 0.8 become -1 · 1.2 and 0.75 · 0.8; the gradients are theirs, whatever the ratio.
    torch.testing.assert_close(penalty.detach(), torch.tensor([0.0, -0.2, 0.0, 0.0, -0.2, 0.0]))
    penalty.sum().backward()
    torch.testing.assert_close(log_probs.grad, torch.tensor([-1.2, 0.6, 0.0, -1.2, 0.6, 0.0]))


@pytest.mark.parametrize("name", base.names())
def test_a_methods_options_and_strengths_go_together(name):
    """Each start is an option of its name, and every schedule that the method's own defaults allow can be made."""
    method = base.find(name)()
    for strength in method.strengths:
        assert strength.start == getattr(method.options, strength.name)
        assert strength.at(strength.effort(strength.start)) == pytest.approx(strength.start)
    control = base.entropy_control(type(method), {})
    assert control.schedule == "open" or method.strengths


def test_published_defaults():
    def defaults(name: str) -> tuple:
        method = base.find(name)()
        return [(s.neutral, s.start, s.bound) for s in method.strengths], base.entropy_control(type(method), {})

    assert defaults("kl_cov")[0] == [(0, 1, 10)] and defaults("kl_cov")[1].schedule == "open"
    assert defaults("clip_cov")[0] == [(0, 0.0002, 0.05)]
    assert defaults("high_entropy")[0] == [(1, 0.2, 0.05)]
    assert defaults("sign_weights")[0] == [(0, 0.5, 0.9)] and defaults("sign_weights")[1].schedule == "pi"
    assert defaults("repo")[0] == [(0, 0.01, 1)] and defaults("repo")[1].schedule == "open"
    assert defaults("clip_higher")[0] == [(0.2, 0.28, 1)] and defaults("clip_higher")[1].schedule == "open"
    strengths, control = defaults("stare")
    assert strengths == [(1, 1.1, 1.5)] and (control.schedule, control.target) == ("gate", 0.3)
    strengths, control = defaults("entropy_bonus")
    assert strengths == [(0, 0, 0.2)]
    assert (control.schedule, control.step, control.target) == ("adaptive", 0.005, 0.2)


def test_the_help_of_a_control_option_names_the_methods_with_a_default_of_their_own():
    assert base.control_default("target") == "0.3; 0.2 for entropy_bonus; 0.1 for sign_weights"
    assert base.control_default("stop_below") == "0.0"
    assert base.control_default("schedule").startswith("gate; open for ce_gppo, clip_cov, clip_higher, ")
    assert "stare" not in base.control_default("schedule")
