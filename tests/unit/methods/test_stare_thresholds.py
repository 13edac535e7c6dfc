"""τ is the k-th largest surprisal of a set; radix finds the same bits as torch.kthvalue."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_stare.algorithms import selection as selecting
from openrlhf_stare.algorithms.selection import kth_largest
from openrlhf_stare.methods import stare
from openrlhf_stare.methods.stare import critical_count, surprisal, surprisal_thresholds

BOTH = pytest.mark.parametrize("selection", ["kthvalue", "radix"])


def bits(x: torch.Tensor) -> int:
    return int(x.view(torch.int32))


# Surprisal


def test_surprisal_is_float32_and_at_least_positive_zero():
    s = surprisal(torch.tensor([-2.0, -0.0, 0.0, 1e-7, -math.inf]))
    assert s.dtype == torch.float32
    assert s.tolist() == [2.0, 0.0, 0.0, 0.0, math.inf]
    assert not torch.signbit(s).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_surprisal_takes_any_floating_type(dtype):
    assert surprisal(torch.tensor([-0.5, 0.0], dtype=dtype)).tolist() == [0.5, 0.0]


def test_surprisal_of_nan_stays_nan():
    assert surprisal(torch.tensor([math.nan])).isnan().all()


# How many


@pytest.mark.parametrize(
    "n, p, k",
    [
        (100, 0.07, 7),  # 0.07 · 100 is 7.000000000000001: a plain ceiling gives 8
        (4, 0.5, 2),
        (2, 0.5, 1),
        (0, 0.5, 0),
        (0, 1.0, 0),
        (10, 0.0, 0),
        (10, 1.0, 10),
        (10, 1e-9, 1),
        (11, 0.1, 2),
        (1, 0.1, 1),
        (10**9, 0.1, 10**8),
    ],
)
def test_k_is_a_ceiling_with_a_tolerance(n, p, k):
    assert critical_count(n, p) == k


@pytest.mark.parametrize("n, p", [(-1, 0.5), (1, -0.1), (1, 1.1), (1, math.nan)])
def test_a_count_or_share_outside_its_range_is_refused(n, p):
    with pytest.raises(ValueError, match=": give "):
        critical_count(n, p)


# Thresholds


@BOTH
def test_each_set_has_its_own_threshold(selection):
    s, a = torch.tensor([0.1, 0.2, 3.0, 4.0]), torch.ones(4)
    assert surprisal_thresholds(s, a, top_p_ratio=0.5, selection=selection) == (3.0, math.inf)
    a = torch.tensor([1.0, 1.0, -1.0, -1.0])
    tau_positive, tau_negative = surprisal_thresholds(s, a, top_p_ratio=0.5, selection=selection)
    assert (tau_positive, tau_negative) == (s[1], s[3])
    assert tau_positive.dtype == torch.float32 and tau_positive.dim() == 0


@BOTH
@pytest.mark.parametrize("advantages", [[], [0.0, -0.0, 0.0], [1.0, -1.0, 2.0]])
def test_an_empty_set_and_a_share_of_zero_have_an_infinite_threshold(advantages, selection):
    s = torch.ones(len(advantages))
    p = 0.0 if any(advantages) else 0.5
    taus = surprisal_thresholds(s, torch.tensor(advantages), top_p_ratio=p, selection=selection)
    assert taus == (math.inf, math.inf)


@BOTH
def test_an_advantage_of_zero_belongs_to_neither_set(selection):
    s, a = torch.tensor([9.0, 1.0, 8.0, 2.0]), torch.tensor([0.0, 1.0, -0.0, -1.0])
    assert surprisal_thresholds(s, a, top_p_ratio=0.1, selection=selection) == (1.0, 2.0)


@BOTH
def test_a_share_of_one_gives_the_smallest_surprisal(selection):
    s, a = torch.tensor([0.0, 5.0, 2.0, 3.0]), torch.tensor([1.0, 1.0, -1.0, -1.0])
    assert surprisal_thresholds(s, a, top_p_ratio=1.0, selection=selection) == (0.0, 2.0)


@BOTH
def test_negative_zero_counts_as_positive_zero(selection):
    taus = surprisal_thresholds(torch.tensor([-0.0]), torch.tensor([1.0]), top_p_ratio=1.0, selection=selection)
    assert bits(taus[0]) == 0


@BOTH
def test_infinity_ranks_highest(selection):
    s = torch.tensor([1.0, math.inf, 3.4e38, 2.0])
    assert surprisal_thresholds(s, torch.ones(4), top_p_ratio=0.25, selection=selection)[0] == math.inf
    assert surprisal_thresholds(s, torch.ones(4), top_p_ratio=0.5, selection=selection)[0] == s[2]


@BOTH
@pytest.mark.parametrize(
    "s, a", [([math.nan, 1], [1, 1]), ([1, 1], [math.nan, 1]), ([-0.5, 1], [1, 1]), ([math.nan, 1], [0, 1])]
)
def test_nan_and_negative_surprisal_are_refused(s, a, selection):
    with pytest.raises(ValueError, match="^1 of the group's tokens"):
        surprisal_thresholds(torch.tensor(s), torch.tensor(a), top_p_ratio=0.5, selection=selection)


def test_wrong_options_and_shapes_are_refused():
    s = torch.ones(2)
    with pytest.raises(ValueError, match="selection topk is not one of auto, kthvalue, radix"):
        surprisal_thresholds(s, s, top_p_ratio=0.5, selection="topk")
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        surprisal_thresholds(s, torch.ones(3), top_p_ratio=0.5)
    with pytest.raises(ValueError, match="one shape"):
        surprisal_thresholds(s.view(1, 2), s.view(1, 2), top_p_ratio=0.5)
    with pytest.raises(ValueError, match="top_p_ratio 2"):
        surprisal_thresholds(s, s, top_p_ratio=2)


@BOTH
def test_the_order_of_the_tokens_is_without_effect(selection):
    s, a = torch.rand(999), torch.randn(999)
    order = torch.randperm(999)
    here = surprisal_thresholds(s, a, top_p_ratio=0.1, selection=selection)
    assert surprisal_thresholds(s[order], a[order], top_p_ratio=0.1, selection=selection) == here


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_are_ranked_as_float32(dtype, selection):
    s, a = torch.rand(500).to(dtype), torch.randn(500).to(dtype)
    expected = surprisal_thresholds(s.float(), a.float(), top_p_ratio=0.1, selection="kthvalue")
    assert surprisal_thresholds(s, a, top_p_ratio=0.1, selection=selection) == expected


def test_auto_takes_radix_from_the_number_of_candidates_on(monkeypatch):
    taken = []
    for name in ("_by_kthvalue", "_by_radix"):
        original = getattr(selecting, name)
        monkeypatch.setattr(selecting, name, lambda *args, f=original, n=name: (taken.append(n), f(*args))[1])
    monkeypatch.setattr(selecting, "RADIX_FROM", 10)
    for n in (9, 10):
        surprisal_thresholds(torch.rand(n), torch.randn(n), top_p_ratio=0.5)
    surprisal_thresholds(torch.rand(20), torch.arange(20) % 2.0, top_p_ratio=0.5)  # ten of the twenty have A = 0
    surprisal_thresholds(torch.rand(20), torch.arange(20) % 2.2, top_p_ratio=0.5)
    assert taken == ["_by_kthvalue", "_by_radix", "_by_radix", "_by_radix"]


# Radix is kthvalue, bit for bit

SURPRISALS = st.one_of(
    st.floats(min_value=0, width=32),  # zeros, denormals, the largest number and infinity
    st.sampled_from([0.0, -0.0, 1e-45, 1.1754944e-38, 1.0, 1.0000001, 2.0, 3.4028235e38, math.inf]),  # many ties
    st.floats(min_value=1, max_value=1 + 2**-10, width=32),  # one interval of the first table
)
TOKENS = st.lists(st.tuples(SURPRISALS, st.sampled_from([1.0, -1.0, 0.5, -0.5, 0.0, -0.0])), max_size=60)
SHARES = st.one_of(st.sampled_from([0.0, 1e-9, 0.07, 0.1, 0.5, 1.0]), st.floats(min_value=0, max_value=1))


def reference(s: torch.Tensor, p: float) -> int:
    k = critical_count(s.numel(), p)
    return bits(torch.kthvalue(s.abs(), s.numel() - k + 1).values) if k else bits(torch.tensor(math.inf))


@settings(max_examples=700, deadline=None)
@given(tokens=TOKENS, p=SHARES)
def test_radix_gives_the_bits_of_kthvalue(tokens, p):
    s = torch.tensor([s for s, _ in tokens])
    a = torch.tensor([a for _, a in tokens])
    expected = (reference(s[a > 0], p), reference(s[a < 0], p))
    for selection in ("radix", "kthvalue"):
        taus = surprisal_thresholds(s, a, top_p_ratio=p, selection=selection)
        assert tuple(map(bits, taus)) == expected


class VirtualRanks:
    """Runs the ranks one after the other in one process, a collective at a time.

    Every rank is run again for each further collective, with the sums of the earlier ones known.
    """

    class _Waits(Exception):
        pass

    def __init__(self, monkeypatch):
        self.sums: list[torch.Tensor] = []
        for module in (selecting, stare):
            monkeypatch.setattr(module, "all_reduce_sums", self._all_reduce_sums)

    def _all_reduce_sums(self, values, group):
        if self.calls == len(self.sums):
            self.shares.append(torch.as_tensor(values).clone())
            raise self._Waits
        self.calls += 1
        return self.sums[self.calls - 1].clone()

    def run(self, ranks):
        self.sums = []
        while True:
            self.shares, results = [], []
            for rank in ranks:
                self.calls = 0
                try:
                    results.append(rank())
                except self._Waits:
                    pass
            if results:
                assert len(results) == len(ranks) and self.calls == len(self.sums)
                return results
            self.sums.append(sum(self.shares))


@settings(max_examples=400, deadline=None)
@given(tokens=TOKENS, p=SHARES, world=st.integers(1, 8), data=st.data())
def test_radix_over_ranks_gives_the_bits_of_kthvalue_of_the_whole(tokens, p, world, data):
    owners = torch.tensor(data.draw(st.lists(st.integers(0, world - 1), min_size=len(tokens), max_size=len(tokens))))
    s = torch.tensor([s for s, _ in tokens])
    a = torch.tensor([a for _, a in tokens])
    expected = (reference(s[a > 0], p), reference(s[a < 0], p))
    with pytest.MonkeyPatch.context() as monkeypatch:
        ranks = [
            lambda own=owners == r: surprisal_thresholds(s[own], a[own], top_p_ratio=p, selection="radix")
            for r in range(world)
        ]
        results = VirtualRanks(monkeypatch).run(ranks)
    assert [tuple(map(bits, taus)) for taus in results] == [expected] * world


@pytest.mark.parametrize("distribution", ["exponential", "one interval", "ties", "zeros"])
def test_radix_gives_the_bits_of_kthvalue_over_many_blocks(distribution, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(selecting, "_BLOCK", 1000)
    n = 30_017
    s = -torch.rand(n).log()
    if distribution == "one interval":
        s = 1 + s.clamp(max=10) / 1000
    elif distribution == "ties":
        s = s.bfloat16().float()
    elif distribution == "zeros":
        s = s * (torch.rand(n) < 0.05)
    a = torch.randn(n) * (torch.rand(n) < 0.9)
    for p in (1e-9, 0.07, 0.1, 1.0):
        taus = surprisal_thresholds(s, a, top_p_ratio=p, selection="radix")
        assert tuple(map(bits, taus)) == (reference(s[a > 0], p), reference(s[a < 0], p))


# Values of either sign, in any number of sets

VALUES = st.lists(
    st.one_of(st.floats(width=32, allow_nan=False), st.sampled_from([0.0, -0.0, 1.0, -1.0])), max_size=40
)


@settings(max_examples=400, deadline=None)
@given(sets=st.lists(VALUES, min_size=1, max_size=3), data=st.data())
def test_the_kth_largest_of_values_of_either_sign_is_that_of_the_sorted_values(sets, data):
    ks = [data.draw(st.integers(0, len(values))) for values in sets]
    counts = [lambda n, k=k: k for k in ks]
    expected = [sorted(values)[len(values) - k] + 0.0 if k else math.inf for values, k in zip(sets, ks, strict=True)]
    for selection in ("radix", "kthvalue"):
        found = kth_largest([torch.tensor(values) for values in sets], counts, selection=selection)
        assert list(map(bits, found)) == [bits(torch.tensor(value)) for value in expected]


@settings(max_examples=200, deadline=None)
@given(values=VALUES, data=st.data())
def test_what_a_mask_leaves_out_does_not_count_whatever_it_is(values, data):
    mask = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    inside = [value for value, own in zip(values, mask, strict=True) if own]
    spoilt = torch.tensor([value if own else math.nan for value, own in zip(values, mask, strict=True)])
    k = data.draw(st.integers(0, len(inside)))
    expected = sorted(inside)[len(inside) - k] + 0.0 if k else math.inf
    for selection in ("radix", "kthvalue"):
        masks = [torch.tensor(mask, dtype=torch.bool)]
        (found,) = kth_largest([spoilt], [lambda n: k if n == len(inside) else 0], masks=masks, selection=selection)
        assert bits(found) == bits(torch.tensor(expected))


def test_k_may_depend_on_the_size_of_the_set_over_all_ranks():
    sets = [torch.arange(10.0), -torch.arange(5.0)]
    found = kth_largest(sets, [lambda n: n // 2, lambda n: n])
    assert [value.item() for value in found] == [5, -4]
