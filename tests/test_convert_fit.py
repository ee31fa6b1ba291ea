"""The fit of one layer: rotary pairs mixed across heads, the best latent of a rank, and what calibration counts."""

import cmath
import itertools
import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import FEW, MANY, head_counts, seeds
from tiny_models import VOCAB, gap, tokens

import kvcourse as kv
from kvcourse.attention.calibration import LayerMoments
from kvcourse.attention.convert import calibrate, to_latent
from kvcourse.attention.latent_fit import GroupedHeads, factor, fit, principal_pairs, value_energy

EXACT = 1e-10  # float64
FLOAT32_ANGLES = 1e-6  # rotary angles are float32 whatever the model is
DIM, HIDDEN = 6, 24
FREQUENCIES = torch.tensor([1.0, 0.25, 0.015625]).double()


def tiny():
    return kv.tiny_model(
        num_heads=4, num_kv_heads=2, head_dim=DIM, hidden_size=HIDDEN, vocab_size=VOCAB, dtype=torch.float64
    )


def random_layer(num_heads, num_kv_heads, seed):
    """Projections, frequencies, and the moments of 200 inputs, with mean turns inside the unit circle."""
    make = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=make, dtype=torch.float64)

    heads = GroupedHeads(
        normal(num_heads, DIM, HIDDEN), normal(num_kv_heads, DIM, HIDDEN), normal(num_kv_heads, DIM, HIDDEN),
        normal(num_heads, HIDDEN, DIM),
    )  # fmt: skip
    x = normal(2, 200, HIDDEN) @ (normal(HIDDEN, HIDDEN) / HIDDEN)
    queries, keys = x.mT @ x / 200
    turning = torch.polar(
        torch.rand(num_heads, DIM // 2, generator=make).double(), normal(num_heads, DIM // 2)
    )
    return heads, FREQUENCIES, LayerMoments(queries, keys, turning)


# ---- rotary pairs ----------------------------------------------------------------------------------


@MANY
@given(head_counts(), seeds(), st.integers(0, 500))
def test_mixing_across_heads_commutes_with_turning(heads, seed, position):
    layer, frequencies, moments = random_layer(*heads, seed)
    pairs = principal_pairs(layer, moments, value_energy(layer, moments))
    make = torch.Generator().manual_seed(seed)
    key = torch.randn(DIM // 2, heads[1], generator=make, dtype=torch.complex128)
    turn = torch.polar(torch.ones(3).double(), frequencies * position)[:, None]

    def mix(matrix, vectors):
        return (matrix @ vectors[..., None])[..., 0]

    assert gap(mix(pairs.to_pairs, turn * key), turn * mix(pairs.to_pairs, key)) <= EXACT
    assert gap(mix(pairs.to_heads, mix(pairs.to_pairs, key)), key) <= EXACT


@FEW
@given(head_counts(), seeds())
def test_scores_of_all_pairs_by_hand(heads, seed):
    """q · k of the new weights, each pair turned as a complex number, next to that of the old ones."""
    layer, frequencies, moments = random_layer(*heads, seed)
    rope_dim = heads[1] * DIM
    latent = fit(layer, frequencies, moments, 1, rope_dim)
    x_q, x_k = torch.randn(2, HIDDEN, dtype=torch.float64)

    def score(q, k, freqs, distance):
        half = len(q) // 2
        return sum(
            (
                complex(q[i], q[i + half]).conjugate()
                * complex(k[i], k[i + half])
                * cmath.exp(-1j * float(freqs[i]) * distance)
            ).real
            for i in range(half)
        )

    for head, distance in itertools.product(range(heads[0]), (0, 1, 37)):
        kv_head = head // (heads[0] // heads[1])
        expected = score(layer.w_q[head] @ x_q, layer.w_k[kv_head] @ x_k, frequencies, distance)
        got = score(latent.w_rope[head] @ x_q, latent.w_key @ x_k, latent.frequencies, distance)
        assert math.isclose(expected, got, rel_tol=1e-9, abs_tol=1e-9)


@MANY
@given(head_counts(), seeds(), st.data())
def test_without_turning_kept_pairs_and_the_rest_make_the_whole_score(heads, seed, data):
    layer, _, moments = random_layer(*heads, seed)
    pairs = principal_pairs(layer, moments, value_energy(layer, moments))
    count = data.draw(st.integers(1, heads[1] * DIM // 2))
    kept = pairs.most_missed(layer, moments, value_energy(layer, moments), count)
    assert len(set(kept.tolist())) == count
    whole = layer.w_q.mT @ layer.per_head(layer.w_k)  # (H, hidden, hidden), the form of every score
    rest = layer.w_q.mT @ layer.per_head(pairs.keys_without(layer, kept))
    assert gap(pairs.queries(layer, kept).mT @ pairs.keys(layer, kept) + rest, whole) <= EXACT


def test_the_pairs_of_a_frequency_are_uncorrelated_and_in_order_of_energy():
    layer, _, moments = random_layer(6, 3, 0)
    pairs = principal_pairs(layer, moments, value_energy(layer, moments))
    w = torch.complex(*pairs.keys(layer, torch.arange(9)).chunk(2))  # three pairs a frequency, in turn
    together = w @ moments.keys.to(w) @ w.mH  # (9, 9), mean of y conj(y)
    for first in (0, 3, 6):
        block = together[first : first + 3, first : first + 3]
        assert gap(block, pairs.energy[first // 3].diag().to(block)) <= EXACT * float(pairs.energy.max())
    assert (pairs.energy.diff(dim=1) >= 0).all()


def test_a_pair_that_turns_away_is_kept_and_one_that_stays_is_not():
    layer, frequencies, moments = random_layer(4, 2, 0)
    turning = torch.ones(4, 3, dtype=torch.complex128)
    turning[:, 1] = 0  # over the distances that heads look across, only frequency 1 turns
    moments = LayerMoments(moments.queries, moments.keys, turning)
    assert fit(layer, frequencies, moments, 8, 4).frequencies.tolist() == [0.25, 0.25]


# ---- low rank --------------------------------------------------------------------------------------


def output_error(layer, w_nope, w_k, moments, stakes, parts):
    """What `factor` promises to make small, summed head by head: errors of scores and of outputs."""
    w_down, w_uk, w_uv = parts
    total = 0.0
    for head in range(len(layer.w_q)):
        kv_head = head // layer.group_size
        key, value = w_uk[head] @ w_down - w_k[kv_head], w_uv[head] @ w_down - layer.w_v[kv_head]
        score = w_nope[head] @ moments.queries @ w_nope[head].mT @ key @ moments.keys @ key.mT
        moved = layer.w_o[head] @ value
        total += float(stakes[head] * score.trace() / DIM + (moved @ moments.keys @ moved.mT).trace())
    return total


@FEW
@given(head_counts(), seeds())
def test_the_error_falls_with_the_rank_and_no_change_of_the_latent_lowers_it(heads, seed):
    layer, _, moments = random_layer(*heads, seed)
    stakes = value_energy(layer, moments)

    def error(parts):
        return output_error(layer, layer.w_q, layer.w_k, moments, stakes, parts)

    errors = []
    full = min(HIDDEN, 2 * DIM * heads[1])
    for rank in range(1, full + 1):
        w_down, w_uk, w_uv = parts = factor(layer, layer.w_q, layer.w_k, moments, stakes, rank)
        errors.append(error(parts))
        for step in (1e-3, -1e-3):
            nudge = torch.randn(w_down.shape, dtype=torch.float64) * step
            assert error((w_down + nudge, w_uk, w_uv)) >= errors[-1] - 1e-9 * errors[0]
    assert all(after < before for before, after in itertools.pairwise(errors))
    assert errors[-1] <= 1e-9 * errors[0]


def test_directions_that_the_text_never_uses_cost_no_rank():
    layer, _, moments = random_layer(4, 2, 0)
    used = torch.randn(5, HIDDEN, dtype=torch.float64)
    flat = LayerMoments(moments.queries, used.mT @ used + 1e-9 * torch.eye(HIDDEN).double(), moments.turning)
    stakes = torch.ones(4).double()

    def error(rank):
        parts = factor(layer, layer.w_q, layer.w_k, flat, stakes, rank)
        return output_error(layer, layer.w_q, layer.w_k, flat, stakes, parts)

    assert error(4) > 1e-3 * error(1)
    assert error(5) <= 1e-6 * error(1)


# ---- calibration -----------------------------------------------------------------------------------


def test_moments_and_turns_by_hand():
    model = tiny()
    calibration = calibrate(model, tokens(2, 7))
    seen = []
    hook = model.layers[1].input_layernorm.register_forward_hook(lambda *call: seen.append(call[2]))
    model(tokens(2, 7))
    hook.remove()
    attention, (x,) = model.layers[1].self_attn, seen
    frequencies = [10_000 ** (-2 * i / DIM) for i in range(3)]

    def pairs(projection, head, row, t):
        vector = (projection.weight @ x[row, t]).view(-1, DIM)[head].tolist()
        return [complex(vector[i], vector[i + 3]) * cmath.exp(1j * f * t) for i, f in enumerate(frequencies)]

    turning, keys = torch.zeros(4, 3, dtype=torch.complex128), torch.zeros(HIDDEN, HIDDEN).double()
    for head, row, t in itertools.product(range(4), range(2), range(7)):
        query = pairs(attention.q_proj, head, row, t)
        past = [pairs(attention.k_proj, head // 2, row, s) for s in range(t + 1)]
        scores = [sum((q.conjugate() * k).real for q, k in zip(query, key, strict=True)) for key in past]
        weights = [math.exp(score / math.sqrt(DIM)) for score in scores]
        for s, weight in enumerate(weights):
            share = weight / sum(weights)
            turning[head] += share * torch.tensor([cmath.exp(1j * f * (t - s)) for f in frequencies]) / 14
            keys += share * torch.outer(x[row, s], x[row, s]) / (14 * 4)
    found = calibration.layers[1]
    assert gap(found.turning, turning) <= FLOAT32_ANGLES
    assert gap(found.keys, keys) <= FLOAT32_ANGLES
    assert gap(found.queries, sum(torch.outer(v, v) for v in x.flatten(0, 1)) / 14) <= EXACT
    assert (len(calibration.layers), calibration.tokens) == (2, 14)


def test_a_text_of_single_tokens_has_no_distances():
    """Nothing turns over a distance of 0, and the few tokens leave most directions without energy."""
    model = tiny()
    calibration = calibrate(model, tokens(3, 1))
    assert all(
        gap(layer.turning, torch.ones(4, 3).to(layer.turning)) <= EXACT for layer in calibration.layers
    )
    assert gap(to_latent(model, 12, 12, calibration)(tokens(1, 9)), model(tokens(1, 9))) <= EXACT
