"""The trainer: its updates are AdamW's, a resumed run is the uninterrupted one, what cannot be trained is refused."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

import kvcourse as kv
from kvcourse.errors import InputError
from kvcourse.training import Recipe, held_out_loss, initialise, train
from kvcourse.training.state import TrainingState

MLA = {
    "num_kv_heads": 4, "kv_lora_rank": 6, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
}  # fmt: skip
KINDS = {"MHA": {"num_kv_heads": 4}, "GQA": {"num_kv_heads": 2}, "MQA": {"num_kv_heads": 1}, "MLA": MLA}
IDS = torch.randint(31, (200,), generator=torch.Generator().manual_seed(1))
HELD_OUT = IDS.flip(0)[:50]


def tiny(**config):
    config = {"num_layers": 1, "head_dim": 8, "vocab_size": 31, "dtype": torch.float64} | config
    return kv.tiny_model(max_position_embeddings=32, **config)


def recipe(**changes):
    options = {"steps": 6, "batch": 2, "context": 8, "learning_rate": 1e-2, "warmup": 2, "seed": 5}
    return Recipe(**options | changes)


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def differ(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


# ---- the arithmetic --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_those_of_adamw_with_clipping_and_the_schedule(kind):
    """Loshchilov and Hutter 2019, algorithm 2, written out, on gradients of the mean loss of the same windows."""
    plan, model, ours = recipe(clip=0.5, weight_decay=0.2), tiny(**KINDS[kind]), tiny(**KINDS[kind])
    history = train(ours, IDS, plan, progress=False)
    model.requires_grad_(True)
    weights = dict(model.named_parameters())
    first = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    second = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    generator = torch.Generator().manual_seed(plan.seed)
    starts = torch.randint(len(IDS) - plan.context, (plan.steps, plan.batch), generator=generator)
    for step in range(plan.steps):
        rows = torch.stack([IDS[start : start + plan.context + 1] for start in starts[step]])
        loss = cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        assert history.losses[step] == pytest.approx(loss.item(), rel=1e-9)
        gradients = torch.autograd.grad(loss, list(weights.values()))
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        assert norm > plan.clip  # the clipping is at work
        done = (step - plan.warmup) / (plan.steps - plan.warmup)
        cosine = plan.final + (1 - plan.final) * 0.5 * (1 + math.cos(math.pi * done))
        rate = plan.learning_rate * ((step + 1) / plan.warmup if step < plan.warmup else cosine)
        with torch.no_grad():
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                gradient = gradient * plan.clip / norm
                first[name] = 0.9 * first[name] + 0.1 * gradient
                second[name] = 0.95 * second[name] + 0.05 * gradient.square()
                mean = first[name] / (1 - 0.9 ** (step + 1))
                spread = (second[name] / (1 - 0.95 ** (step + 1))).sqrt()
                decay = plan.weight_decay if weight.dim() == 2 else 0.0
                weight -= rate * (mean / (spread + 1e-8) + decay * weight)
    for name, weight in ours.named_parameters():
        torch.testing.assert_close(weight, weights[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_learns_without_a_cache(kind):
    model = tiny(**KINDS[kind])
    before = weights_of(model)
    train(model, IDS, recipe(steps=1, warmup=0, weight_decay=0.0), progress=False)
    assert differ(before, weights_of(model)) == set(before)


def test_a_text_that_repeats_is_learnt():
    model = initialise(tiny(num_kv_heads=2, num_layers=2, dtype=torch.float32))
    text = torch.arange(200) % 7
    history = train(
        model, text, recipe(steps=60), held_out=text[:40], evaluate_at=(0, 30, 60), progress=False
    )
    before, _, after = (loss for _, loss in history.evaluations)
    assert before == pytest.approx(math.log(31), abs=0.1)
    assert after < 0.2
    assert [step for step, _ in history.evaluations] == [0, 30, 60]


def test_held_out_loss_is_the_mean_over_all_targets_of_whole_windows():
    model, ids, context = tiny(), IDS[:30], 8
    terms = []
    for start in (0, 8, 16):  # a fourth window would need the token at 32
        logp = model(ids[None, start : start + context])[0].log_softmax(-1)
        terms += [-logp[i, ids[start + i + 1]].item() for i in range(context)]
    for rows in (1, 2, 16):
        assert held_out_loss(model, ids, context, rows) == pytest.approx(sum(terms) / 24, rel=1e-9)
    assert held_out_loss(model, ids[:25], context) == pytest.approx(sum(terms) / 24, rel=1e-9)
    assert held_out_loss(model, ids[:24], context) == pytest.approx(sum(terms[:16]) / 16, rel=1e-9)


def test_initial_weights_depend_on_name_shape_and_seed_alone():
    heads, latents = initialise(tiny(), 3), initialise(tiny(**MLA), 3)
    assert torch.equal(heads.embed_tokens.weight, latents.embed_tokens.weight)
    assert torch.equal(heads.layers[0].mlp.up_proj.weight, latents.layers[0].mlp.up_proj.weight)
    assert not torch.equal(heads.embed_tokens.weight, initialise(tiny(), 4).embed_tokens.weight)
    assert heads.embed_tokens.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert heads.layers[0].mlp.down_proj.weight.std().item() == pytest.approx(0.02 / math.sqrt(2), rel=0.1)
    assert torch.equal(heads.norm.weight, torch.ones_like(heads.norm.weight))


# ---- which weights ---------------------------------------------------------------------------------


def test_only_the_chosen_weights_train_and_gradients_are_as_before():
    model = tiny(num_layers=2)
    model.norm.weight.requires_grad_(True)
    before = weights_of(model)
    train(model, IDS, recipe(), parameters=("layers.1.self_attn.*", "norm.weight"), progress=False)
    changed = differ(before, weights_of(model))
    assert changed == {name for name in before if name.startswith("layers.1.self_attn.")} | {"norm.weight"}
    assert [name for name, weight in model.named_parameters() if weight.requires_grad] == ["norm.weight"]
    assert all(weight.grad is None for weight in model.parameters())
    assert not model.training


def test_training_works_where_gradients_are_switched_off_and_leaves_them_off():
    expected, model = tiny(), tiny()
    train(expected, IDS, recipe(), progress=False)
    with torch.no_grad():
        train(model, IDS, recipe(), progress=False)
        assert not torch.is_grad_enabled()
    assert differ(weights_of(expected), weights_of(model)) == set()


# ---- resuming --------------------------------------------------------------------------------------


def interrupt_at(monkeypatch, step):
    """Let training stop after the state of `step` is kept, as ctrl-c does."""
    save = TrainingState.save

    def stop(self, done, *rest):
        save(self, done, *rest)
        if done == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(TrainingState, "save", stop)


@pytest.mark.parametrize("kind", ["GQA", "MLA"])
@pytest.mark.parametrize("stop", [2, 4])
def test_a_resumed_run_ends_like_an_uninterrupted_one_to_the_bit(kind, stop, tmp_path, monkeypatch):
    options = {"held_out": HELD_OUT, "evaluate_at": (0, 2, 3, 6), "progress": False}
    whole = tiny(**KINDS[kind], dtype=torch.float32)
    expected = train(whole, IDS, recipe(), **options)
    broken, resumed = (tiny(**KINDS[kind], dtype=torch.float32) for _ in range(2))
    options |= {"folder": tmp_path / "run", "save_every": 2}
    with monkeypatch.context() as patch:
        interrupt_at(patch, stop)
        with pytest.raises(KeyboardInterrupt):
            train(broken, IDS, recipe(), **options)
    assert not any(weight.requires_grad for weight in broken.parameters())
    history = train(resumed, IDS, recipe(), **options)
    assert history.losses == expected.losses
    assert history.evaluations == expected.evaluations
    assert differ(weights_of(whole), weights_of(resumed)) == set()


def test_a_finished_run_returns_its_weights_at_once(tmp_path, monkeypatch):
    first, second = tiny(), tiny()
    expected = train(first, IDS, recipe(), folder=tmp_path, progress=False)
    monkeypatch.setattr(kv.Decoder, "forward", lambda *_: pytest.fail("trained again"))
    history = train(second, IDS, recipe(), folder=tmp_path, progress=False)
    assert history == expected
    assert differ(weights_of(first), weights_of(second)) == set()
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


OTHERS = {
    "recipe": {"recipe": recipe(learning_rate=2e-2)},
    "text": {"ids": IDS + (IDS == 0)},
    "weights": {"model": {"seed": 1}},
    "trained": {"parameters": ("norm.weight",)},
    "held_out": {"held_out": HELD_OUT + (HELD_OUT == 0)},
    "config": {"model": {"rope_theta": 500.0}},
}


@pytest.mark.parametrize("what", OTHERS)
def test_the_state_of_another_run_is_refused_and_nothing_changes(what, tmp_path):
    options = {"held_out": HELD_OUT, "folder": tmp_path, "progress": False}
    train(tiny(), IDS, recipe(), **options)
    kept = (tmp_path / "state.pt").read_bytes()
    other = dict(OTHERS[what])
    model, ids, plan = tiny(**other.pop("model", {})), other.pop("ids", IDS), other.pop("recipe", recipe())
    before = weights_of(model)
    with pytest.raises(InputError, match=f"another run .its {what} differ"):
        train(model, ids, plan, **options | other)
    assert (tmp_path / "state.pt").read_bytes() == kept
    assert differ(before, weights_of(model)) == set()


@pytest.mark.parametrize("content", [b"", b"no state", b"PK\x03\x04"])
def test_a_damaged_state_is_refused(content, tmp_path):
    (tmp_path / "state.pt").write_bytes(content)
    with pytest.raises(InputError, match="not a readable training state"):
        train(tiny(), IDS, recipe(), folder=tmp_path, progress=False)


def test_a_state_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    options = {"folder": tmp_path, "save_every": 2, "progress": False}
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            train(tiny(), IDS, recipe(), **options)
    kept = (tmp_path / "state.pt").read_bytes()

    def full(state, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(InputError, match="No space left"):
            train(tiny(), IDS, recipe(), **options)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"state.pt": kept}


# ---- what is refused -------------------------------------------------------------------------------

REFUSED = {
    "short text": ({"ids": [1] * 8}, "ids has 8 tokens: expected at least context . 1 = 9"),
    "text": ({"ids": "text"}, "ids: expected token ids in one row"),
    "rows": ({"ids": [[1, 2], [3, 4]]}, "one row"),
    "fractions": ({"ids": [0.5] * 20}, "one row"),
    "foreign": ({"ids": [31] * 20}, "token id 31, expected 0 to 30"),
    "negative": ({"ids": [-1] * 20}, "token id -1"),
    "positions": ({"recipe": recipe(context=33)}, "context=33: the model has 32 positions"),
    "pattern": ({"parameters": ("layers.9.*",)}, "no weight of the model is named 'layers.9"),
    "none": ({"parameters": ()}, "nothing to train"),
    "narrow": ({"model": {"dtype": torch.bfloat16}}, "bfloat16: small updates round to nothing"),
    "no held-out": ({"evaluate_at": (1,)}, "evaluate_at without held_out"),
    "late": ({"evaluate_at": (7,), "held_out": HELD_OUT}, "evaluate_at: step=7"),
    "short held-out": ({"held_out": [1, 2]}, "held_out has 2 tokens"),
    "save": ({"save_every": 0}, "save_every=0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_is_refused(case):
    changes, message = REFUSED[case]
    options = {"ids": IDS, "recipe": recipe(), "progress": False, **changes}
    model = tiny(**options.pop("model", {}))
    before = weights_of(model)
    with pytest.raises(InputError, match=message):
        train(model, **options)
    assert differ(before, weights_of(model)) == set()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("here already")
    with pytest.raises(InputError, match="cannot keep the training state"):
        train(tiny(), IDS, recipe(), folder=tmp_path / "file" / "run", progress=False)


def test_a_loss_that_is_no_number_says_what_to_do():
    model = tiny()
    model.norm.weight.data.fill_(math.nan)
    with pytest.raises(InputError, match=r"step 0 is nan: lower learning_rate=0\.01"):
        train(model, IDS, recipe(), progress=False)


@pytest.mark.parametrize(
    "changes",
    [{"steps": 0}, {"batch": 1.5}, {"context": True}, {"warmup": -1}, {"learning_rate": 0}, {"clip": math.inf},
     {"final": -0.1}, {"weight_decay": "much"}, {"learning_rate": math.nan}],
)  # fmt: skip
def test_a_recipe_without_sense_is_refused(changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        recipe(**changes)


@pytest.mark.parametrize("warmup", [0, 3])
def test_the_rate_rises_to_its_peak_and_falls_to_its_end(warmup):
    plan = recipe(steps=40, warmup=warmup, final=0.25)
    rates = [plan.rate(step) for step in range(41)]
    assert max(rates) == plan.learning_rate == rates[warmup]
    assert rates[:warmup] == pytest.approx(
        [plan.learning_rate * (i + 1) / max(1, warmup) for i in range(warmup)]
    )
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert rates[40] == pytest.approx(0.25 * plan.learning_rate)
