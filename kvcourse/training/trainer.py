"""The loop: windows of a text, one update each, measured on the way and kept in a folder."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from kvcourse.counts import read_count
from kvcourse.errors import InputError
from kvcourse.training.recipe import History, Recipe
from kvcourse.training.state import TrainingState, fingerprint
from kvcourse.training.weights import choose_weights, trainable

SAVE_EVERY = 50  # steps
ROWS = 16  # windows measured at once


def train(
    model: Any,
    ids: Sequence[int] | Tensor,
    recipe: Recipe,
    *,
    held_out: Sequence[int] | Tensor | None = None,
    evaluate_at: Iterable[int] = (),
    parameters: Sequence[str] = ("*",),
    folder: str | Path | None = None,
    save_every: int = SAVE_EVERY,
    rows: int = ROWS,
    title: str = "training",
    progress: bool | None = None,
) -> History:
    """Train `model` in place on windows drawn from `ids`.

    ids: the token ids of the text, in one row. held_out: ids of another text; `held_out_loss` on it is kept for each
    step of `evaluate_at` (0 is before the first update, recipe.steps after the last).
    parameters: patterns of names of the weights that train, such as "layers.*.self_attn.*"; the others stay.
    folder: where the state is kept every `save_every` steps and at the end. A run that finds a state there goes on
    from it and ends with the weights, to the bit, of a run that was never interrupted (on the same machine with as
    many threads); a finished one returns at once. Without a folder nothing is written.
    rows: windows of the held-out text that are read at once.
    progress: a bar on standard error; default: only on a terminal.

    The model comes back in eval mode, with gradients required where they were before.

    Errors: InputError for a text shorter than context + 1 tokens, ids outside the vocabulary, a context beyond the
    model's positions, weights narrower than float32, a pattern that names no weight, a folder with the state of
    another run or that cannot be written, and a loss that is no longer a number.
    """
    if not isinstance(recipe, Recipe):
        raise InputError(f"recipe is a {type(recipe).__name__}: expected a kvcourse.training.Recipe")
    if not isinstance(evaluate_at, Iterable):
        raise InputError(f"evaluate_at={evaluate_at!r}: expected steps, such as (0, {recipe.steps})")
    ids, limit = _row(model, ids, "ids", recipe.context), model.config.max_position_embeddings
    if recipe.context > limit:
        raise InputError(
            f"context={recipe.context}: the model has {limit} positions; choose a shorter context"
        )
    moments = sorted(
        {read_count("evaluate_at: step", step, least=0, most=recipe.steps) for step in evaluate_at}
    )
    if moments and held_out is None:
        raise InputError("evaluate_at without held_out: give the token ids of a text that is not trained on")
    held_out = None if held_out is None else _row(model, held_out, "held_out", recipe.context)
    chosen = choose_weights(model, parameters)
    save_every = read_count("save_every", save_every)
    state = None
    if folder is not None:
        key = {"recipe": asdict(recipe), "evaluate_at": moments, "trained": sorted(chosen)}
        state = TrainingState(folder, key | fingerprint(model, ids, held_out))
    optimizer = _optimizer(chosen, recipe)
    history, first = History(), 0
    if state is not None and (kept := state.load(chosen, optimizer)) is not None:
        first, history = kept["step"], History(**kept["history"])
    if first == recipe.steps:
        return history
    windows = _windows(len(ids), recipe)
    with trainable(model, chosen), _bar(recipe.steps, first, title, progress) as bar:
        start = time.perf_counter() - history.seconds
        for step in range(first, recipe.steps):
            if step in moments and step not in dict(history.evaluations):
                history.evaluations.append((step, held_out_loss(model, held_out, recipe.context, rows)))
            loss = _update(model, optimizer, _batch(ids, windows[step], recipe.context), recipe, step)
            history.losses.append(loss)
            history.seconds = time.perf_counter() - start
            done = step + 1
            if done == recipe.steps and done in moments:
                history.evaluations.append((done, held_out_loss(model, held_out, recipe.context, rows)))
            if state is not None and (done % save_every == 0 or done == recipe.steps):
                state.save(done, history, chosen, optimizer if done < recipe.steps else None)
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update()
    return history


@torch.no_grad()
def held_out_loss(model: Any, ids: Sequence[int] | Tensor, context: int, rows: int = ROWS) -> float:
    """Mean cross entropy in nats per token over `ids`, cut into windows of `context` tokens that do not overlap.

    Every token of a window predicts the next one, also the first, which sees nothing before it. What does not fill
    a window is left out. rows: windows read at once.

    Errors: InputError for fewer than context + 1 tokens, ids outside the vocabulary, or a context beyond the model's
    positions.
    """
    context, ids = read_count("context", context), _row(model, ids, "ids", context)
    starts = torch.arange(0, len(ids) - context, context)
    total = 0.0
    for part in starts.split(read_count("rows", rows)):
        inputs, targets = _batch(ids, part, context)
        logits = model(inputs)  # (rows, context, vocab)
        total += float(cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").double())
    return total / (len(starts) * context)


def _update(model: Any, optimizer: torch.optim.Optimizer, batch: tuple, recipe: Recipe, step: int) -> float:
    """One step. Returns the loss before it, in nats per token."""
    inputs, targets = batch
    for group in optimizer.param_groups:
        group["lr"] = recipe.rate(step)
    optimizer.zero_grad(set_to_none=True)
    loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    if not loss.isfinite():
        raise InputError(
            f"the loss of step {step} is {loss.item()}: lower learning_rate={recipe.learning_rate}"
        )
    loss.backward()
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    torch.nn.utils.clip_grad_norm_(weights, recipe.clip)
    optimizer.step()
    return loss.item()


def _windows(tokens: int, recipe: Recipe) -> Tensor:
    """(steps, batch) first tokens of the windows."""
    generator = torch.Generator().manual_seed(recipe.seed)
    return torch.randint(tokens - recipe.context, (recipe.steps, recipe.batch), generator=generator)


def _batch(ids: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, (len(starts), context) each."""
    index = starts[:, None] + torch.arange(context + 1)  # (rows, context + 1)
    window = ids[index.to(ids.device)]
    return window[:, :-1], window[:, 1:]


def _optimizer(chosen: Mapping[str, Tensor], recipe: Recipe) -> torch.optim.AdamW:
    matrices = [weight for weight in chosen.values() if weight.dim() >= 2]
    vectors = [weight for weight in chosen.values() if weight.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.0, betas=recipe.betas)


def _row(model: Any, ids: Any, name: str, context: int) -> Tensor:
    """ids as (tokens,) int64 on the model's device, at least context + 1 of them and inside the vocabulary."""
    try:
        row = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError):
        row = None
    if (
        row is None
        or row.dim() != 1
        or row.is_floating_point()
        or row.is_complex()
        or row.dtype == torch.bool
    ):
        raise InputError(
            f"{name}: expected token ids in one row, a list of whole numbers or a 1-d tensor of them"
        )
    if len(row) <= context:
        raise InputError(f"{name} has {len(row)} tokens: expected at least context + 1 = {context + 1}")
    low, high = (int(end) for end in row.aminmax())
    if low < 0 or high >= model.config.vocab_size:
        raise InputError(
            f"{name}: token id {low if low < 0 else high}, expected 0 to {model.config.vocab_size - 1}"
        )
    return row.to(model.device, torch.int64)


def _bar(steps: int, first: int, title: str, progress: bool | None) -> tqdm:
    return tqdm(
        total=steps, initial=first, desc=title, unit="step", leave=False, file=sys.stderr,
        disable=None if progress is None else not progress,
    )  # fmt: skip
