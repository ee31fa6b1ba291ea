"""The file that keeps a training run: what it refuses, it leaves untouched."""

import pytest
import torch

import kvcourse as kv
from kvcourse.config import ExpertsConfig
from kvcourse.errors import InputError
from kvcourse.training.recipe import History
from kvcourse.training.state import TrainingState, fingerprint


@pytest.fixture
def run(tmp_path):
    weights = {"w": torch.nn.Parameter(torch.ones(2, 3))}
    optimizer = torch.optim.AdamW(weights.values())
    return TrainingState(tmp_path, {"steps": 4}), weights, optimizer


def test_what_was_saved_comes_back(run):
    state, weights, optimizer = run
    weights["w"].square().sum().backward()
    optimizer.step()
    saved = weights["w"].detach().clone()
    state.save(1, History([2.0], [(0, 3.0)], 0.5), weights, optimizer)
    weights["w"].data.zero_()
    kept = state.load(weights, optimizer)
    assert kept == {"step": 1, "history": {"losses": [2.0], "evaluations": [(0, 3.0)], "seconds": 0.5}}
    assert torch.equal(weights["w"], saved)


@pytest.mark.parametrize("lost", ["step", "key", "history", "weights", "optimizer"])
def test_a_state_without_one_of_its_parts_changes_nothing(run, lost):
    state, weights, optimizer = run
    state.save(1, History(), {"w": torch.zeros(2, 3)}, optimizer)
    kept = torch.load(state.path, weights_only=True)
    del kept[lost]
    torch.save(kept, state.path)
    with pytest.raises(InputError, match="not a readable training state"):
        state.load(weights, optimizer)
    assert torch.equal(weights["w"], torch.ones(2, 3))


def test_a_state_that_more_decided_is_named_as_another_run(run):
    state, weights, optimizer = run
    TrainingState(state.path.parent, {"steps": 4, "dropout": 0.1}).save(1, History(), weights, optimizer)
    with pytest.raises(InputError, match=r"another run \(its dropout differ\)"):
        state.load(weights, optimizer)


def test_the_bias_of_a_router_decides_a_run_too():
    experts = ExpertsConfig(
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, scoring_func="sigmoid"
    )
    model, ids = kv.tiny_model(experts=experts), torch.arange(9)
    before = fingerprint(model, ids, None)
    model.layers[1].mlp.gate.e_score_correction_bias += 1
    assert fingerprint(model, ids, None)["weights"] != before["weights"]
