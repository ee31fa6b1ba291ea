"""Mixture of experts against a loop over tokens in plain Python and float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import FEW, MANY, seeds

import kvcourse as kv
from kvcourse.config import ExpertsConfig
from kvcourse.errors import InputError
from kvcourse.experts import MixtureOfExperts

HIDDEN = 7
SHAPE = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 5}


def mixture(seed=0, dtype=torch.float64, mlp_bias=False, **fields):
    """A mixture of experts in which every number is random, the router's bias too."""
    config = kv.tiny_model(
        hidden_size=HIDDEN, mlp_bias=mlp_bias, experts=ExpertsConfig(**SHAPE | fields)
    ).config
    module = MixtureOfExperts(config).double()
    generator = torch.Generator().manual_seed(seed)
    for tensor in module.state_dict().values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * 0.5)
    return module.to(dtype).requires_grad_(False)


def inputs(*shape, seed=1):
    return torch.randn(*shape, HIDDEN, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gated(module, x):
    """down(silu(gate x) · up x) of one token, number by number."""

    def apply(layer, values):
        rows = [sum(w * v for w, v in zip(row, values, strict=True)) for row in layer.weight.tolist()]
        return rows if layer.bias is None else [r + b for r, b in zip(rows, layer.bias.tolist(), strict=True)]

    gate, up = apply(module.gate_proj, x), apply(module.up_proj, x)
    inside = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)]
    return apply(module.down_proj, inside)


def routed(module, x):
    """{expert: weight} of one token, from the definitions in the papers."""
    config = module.gate.config
    logits = [sum(w * v for w, v in zip(row, x, strict=True)) for row in module.gate.weight.tolist()]
    if config.scoring_func == "softmax":
        total = sum(map(math.exp, logits))
        scores = [math.exp(logit) / total for logit in logits]
        steered, counted = scores, 1
    else:
        scores = [1 / (1 + math.exp(-logit)) for logit in logits]
        bias = module.gate.e_score_correction_bias.tolist()
        steered, counted = [s + b for s, b in zip(scores, bias, strict=True)], 2
    size = len(scores) // config.n_group
    groups = [range(first, first + size) for first in range(0, len(scores), size)]

    def rank(group):
        return sum(sorted((steered[e] for e in group), reverse=True)[:counted])

    best = sorted(groups, key=rank, reverse=True)[: config.topk_group]
    reachable = sorted((e for group in best for e in group), key=lambda e: steered[e], reverse=True)
    chosen = reachable[: config.num_experts_per_tok]
    norm = sum(scores[e] for e in chosen) if config.norm_topk_prob else 1.0
    return {e: scores[e] / norm * config.routed_scaling_factor for e in chosen}


def by_hand(module, x):
    """x: (tokens, hidden) -> the same shape, one token and one expert after the other."""
    rows = []
    for token in x.tolist():
        out = [0.0] * len(token) if module.shared_experts is None else gated(module.shared_experts, token)
        for expert, weight in routed(module, token).items():
            out = [o + weight * y for o, y in zip(out, gated(module.experts[expert], token), strict=True)]
        rows.append(out)
    return torch.tensor(rows, dtype=torch.float64)


@st.composite
def routings(draw):
    """Fields of an ExpertsConfig that fit together."""
    scoring = draw(st.sampled_from(["softmax", "sigmoid"]))
    groups, size = draw(st.integers(1, 4)), draw(st.integers(1 + (scoring == "sigmoid"), 4))
    used = draw(st.integers(1, groups))
    return {
        "n_routed_experts": groups * size,
        "n_group": groups,
        "topk_group": used,
        "num_experts_per_tok": draw(st.integers(1, used * size)),
        "moe_intermediate_size": draw(st.integers(1, 5)),
        "n_shared_experts": draw(st.integers(0, 2)),
        "scoring_func": scoring,
        "norm_topk_prob": draw(st.booleans()),
        "routed_scaling_factor": draw(st.sampled_from([1.0, 2.5, 16.0])),
        "mlp_bias": draw(st.booleans()),
    }


@MANY
@given(fields=routings(), seed=seeds())
def test_equals_a_loop_over_tokens(fields, seed):
    module, x = mixture(seed=seed, **fields), inputs(2, 3, seed=seed)
    assert torch.allclose(module(x).flatten(0, 1), by_hand(module, x.flatten(0, 1)), rtol=1e-12, atol=1e-12)


@FEW
@given(fields=routings(), seed=seeds())
def test_a_token_is_treated_alike_in_every_batch(fields, seed):
    module, x = mixture(seed=seed, **fields), inputs(3, 4, seed=seed)
    alone = torch.stack([torch.cat([module(x[b, t][None]) for t in range(4)]) for b in range(3)])
    assert torch.allclose(module(x), alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_a_token_stays_inside_its_groups(scoring):
    limited = mixture(n_group=4, topk_group=2, num_experts_per_tok=3, scoring_func=scoring)
    free = mixture(num_experts_per_tok=3, scoring_func=scoring)
    x = inputs(200)
    groups = limited.gate(x)[1] // 2  # (tokens, 3): groups of two experts
    assert max(len(set(row)) for row in groups.tolist()) == 2
    assert max(len(set(row)) for row in (free.gate(x)[1] // 2).tolist()) == 3


def test_the_bias_steers_the_choice_and_not_the_weights():
    module, x = mixture(scoring_func="sigmoid", num_experts_per_tok=1), inputs(50)
    scores = torch.sigmoid(x @ module.gate.weight.T)  # (50, experts)
    module.gate.e_score_correction_bias.zero_()
    assert (module.gate(x)[1] != 3).any()
    module.gate.e_score_correction_bias[3] = 10
    weights, chosen = module.gate(x)
    assert (chosen == 3).all()
    assert torch.allclose(weights, scores[:, 3:4])


def test_weights_of_the_chosen_add_up_to_the_factor_when_normalised():
    fields = {"norm_topk_prob": True, "routed_scaling_factor": 2.5, "num_experts_per_tok": 3}
    for scoring in ("softmax", "sigmoid"):
        weights, chosen = mixture(scoring_func=scoring, **fields).gate(inputs(20))
        assert torch.allclose(weights.sum(-1), torch.full((20,), 2.5, dtype=torch.float64))
        assert all(len(set(row)) == 3 for row in chosen.tolist())


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types_route_in_float32(scoring, dtype):
    """Scores that only differ beyond eight bits must not become ties."""
    short = mixture(dtype=dtype, scoring_func=scoring, n_routed_experts=64, n_group=8, topk_group=3)
    x = inputs(300).to(dtype)
    weights, chosen = short.gate(x)
    wide_weights, wide_chosen = short.float().gate(x.float())
    assert weights.dtype == torch.float32
    assert torch.equal(chosen, wide_chosen)
    assert torch.equal(weights, wide_weights)


def test_results_have_the_dtype_of_the_input():
    assert mixture(dtype=torch.bfloat16, n_shared_experts=1)(inputs(2, 3).bfloat16()).dtype == torch.bfloat16


def test_gradients_reach_the_router_and_the_chosen_experts():
    module = mixture(n_shared_experts=1, scoring_func="sigmoid").requires_grad_(True)
    x = inputs(1)
    chosen = set(module.gate(x)[1].flatten().tolist())
    module(x).square().sum().backward()
    assert module.gate.weight.grad.abs().sum() > 0
    got = {e for e, expert in enumerate(module.experts) if expert.up_proj.weight.grad is not None}
    assert got == chosen


def test_layers_before_the_first_are_dense():
    experts = ExpertsConfig(**SHAPE, first_k_dense_replace=2)
    model = kv.tiny_model(num_layers=4, experts=experts)
    assert [isinstance(layer.mlp, MixtureOfExperts) for layer in model.layers] == [False, False, True, True]
    assert [model.config.has_experts(layer) for layer in range(4)] == [False, False, True, True]


def test_a_cache_changes_nothing():
    experts = ExpertsConfig(**SHAPE, n_shared_experts=1, scoring_func="sigmoid")
    model = kv.tiny_model(experts=experts, dtype=torch.float64)
    ids = torch.arange(20)[None]
    cache = kv.KVCache(model.config, batch_size=1)
    pieces = [model(piece, cache=cache) for piece in ids.split([7, 1, 1, 11], dim=1)]
    assert torch.allclose(torch.cat(pieces, 1), model(ids), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_routed_experts": 0}, "n_routed_experts=0"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok=0"),
        ({"moe_intermediate_size": 1.5}, "moe_intermediate_size=1.5"),
        ({"n_shared_experts": -1}, "n_shared_experts=-1"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace=-1"),
        ({"n_group": 3}, "8 is not a multiple of n_group=3"),
        ({"n_group": 2, "topk_group": 3}, "topk_group=3: there are only n_group=2"),
        ({"num_experts_per_tok": 9}, "among 8 experts"),
        ({"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3}, "among 2 experts"),
        ({"scoring_func": "linear"}, "'softmax' or 'sigmoid'"),
        ({"scoring_func": "sigmoid", "n_group": 8, "num_experts_per_tok": 1}, "a group of one expert"),
        ({"routed_scaling_factor": 0.0}, "routed_scaling_factor=0.0"),
        ({"routed_scaling_factor": math.nan}, "routed_scaling_factor=nan"),
    ],
)
def test_experts_that_cannot_be_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        ExpertsConfig(**SHAPE | fields)


def test_experts_of_another_kind_are_refused():
    with pytest.raises(InputError, match="expected an ExpertsConfig"):
        kv.tiny_model(experts=SHAPE)
