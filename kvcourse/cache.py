"""KVCache: a plan made real for one model."""

import torch
from torch import Tensor

from kvcourse import codecs
from kvcourse.attention.families import layout_of
from kvcourse.attention.gqa import attention, causal_mask
from kvcourse.attention.padding import positions_of, read_mask
from kvcourse.config import ModelConfig
from kvcourse.counts import MOST, read_count
from kvcourse.errors import InputError
from kvcourse.kernels import contiguous_decode
from kvcourse.plan import Plan, plan_or_default
from kvcourse.step import Step
from kvcourse.storage.contiguous import ContiguousStore

MOST_ROWS = 1 << 20  # a cache keeps numbers per row in Python


class KVCache:
    """Keys and values of a batch of sequences, and attention over them.

    config: the model's ModelConfig. plan: one choice per axis; Plan() by default. batch_size: sequences, which
    may differ in length.

    A forward pass is one step: `begin`, then `attend` once for each layer in order, then `commit`, and only then do
    the new tokens count; `rollback` drops it. A pass that was interrupted anywhere leaves the cache as it was.
    Without padding `attend` alone does; the step then commits itself after the last layer.
    """

    def __init__(self, config: ModelConfig, plan: Plan | None = None, batch_size: int = 1) -> None:
        plan = plan_or_default(plan)
        batch_size = read_count("batch_size", batch_size, most=MOST_ROWS)
        plan.require_runnable()
        self.config, self.plan, self.batch_size = config, plan, batch_size
        self._dtype = codecs.get(plan.codec).dtype
        self._stores = [
            ContiguousStore(layer, batch_size, plan.block_size, plan.capacity) for layer in layout_of(config)
        ]
        self._seen = (0,) * batch_size
        # One past the furthest position ever written, committed or not: what a ring has made room for.
        self._highest = (0,) * batch_size
        self._step: Step | None = None

    @property
    def seen(self) -> tuple[int, ...]:
        """Tokens that each row has seen so far: the position of its next token."""
        return self._seen

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens kept per row, that is visible to some layer: all, unless every layer has a window."""
        windows = [store.window for store in self._stores]
        return self._seen if None in windows else tuple(min(seen, max(windows)) for seen in self._seen)

    @property
    def capacity(self) -> int:
        """Slots allocated per row in the largest layer. At least the tokens it holds, usually more."""
        return max(store.slots for store in self._stores)

    @property
    def nbytes(self) -> int:
        """Bytes allocated for all layers and rows, measured from the arrays."""
        return sum(store.nbytes for store in self._stores)

    def begin(
        self, num_tokens: int, attention_mask: Tensor | None = None, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Start a step of `num_tokens` tokens per row and return their positions.

        attention_mask: (batch, num_tokens), 1 for tokens and 0 for padding, padding on the left; None: no padding.
        device: of the positions, that of the keys to come.
        Returns (batch, num_tokens) int64, the position of each token in its own row, -1 for padding.
        Errors: InputError for another shape, padding that is not on the left, or a row of padding only.
        """
        num_tokens = read_count("tokens of a step", num_tokens)
        if attention_mask is None:
            new = (num_tokens,) * self.batch_size
            offsets = torch.arange(num_tokens, device=device)
            positions = torch.tensor(self._seen, device=device)[:, None] + offsets
        else:
            valid = read_mask(attention_mask, self.batch_size, num_tokens, device)
            new = tuple(valid.sum(-1).tolist())
            positions = positions_of(torch.tensor(self._seen, device=device), valid)
        self._step = Step(self._seen, new, num_tokens, positions, announced=True)
        return positions

    @torch.no_grad()
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new keys and values of `layer`, and attend to everything it holds.

        q: (batch, num_heads, tokens, head_dim), rotated; k: (batch, num_kv_heads, tokens, head_dim), rotated;
        v: (batch, num_kv_heads, tokens, head_dim). Returns (batch, num_heads, tokens, head_dim); rows of
        padding hold no meaning.

        Errors: InputError for shapes that do not fit, or layers out of order; the cache is unchanged.
        """
        self._check(layer, {"q": q, "k": k, "v": v})
        step, store, new = self._enter(layer, k, v)
        if step.width == 1:
            out = self._decode(store, q, step)
        elif max(step.past) == 0:
            out = self._attend_fresh(store, q, new, step)
        elif store.window is None:
            out = self._attend_filled(store, q, step)
        else:
            out = self._attend_ring(store, q, new, step)
        self._leave(step)
        return out

    @torch.no_grad()
    def append(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store the new keys and values of `layer` without attending: a prefill that was computed elsewhere.

        Shapes, order of layers and errors as in `attend`.
        """
        self._check(layer, {"k": k, "v": v})
        step, _, _ = self._enter(layer, k, v)
        self._leave(step)

    def commit(self) -> None:
        """End the step that `begin` started: from now on its tokens count.

        Errors: InputError when a layer has not attended yet.
        """
        step = self._step
        if step is None or step.next_layer < len(self._stores):
            done = 0 if step is None else step.next_layer
            raise InputError(
                f"commit() after {done} of {len(self._stores)} layers: begin() a step, attend with every layer"
            )
        for store, new in step.staged:
            self._write(store, new, step)
        self._seen, self._step = step.total, None

    def rollback(self) -> None:
        """Drop the step that `begin` started: nothing of it counts. The next `begin` does this too."""
        self._step = None

    def crop(self, n: int) -> None:
        """Keep the first n tokens of every row (n ≥ 0), or drop the last -n (n < 0). Allocated memory stays.

        Errors: InputError when a row would have to grow, or when a sliding layer has already overwritten
        what the window needs: it can go back at most `plan.block_size` tokens past a full ring.
        """
        n = read_count("crop: n", n, least=-MOST)  # a snapshot, also of a tensor that changes later
        kept = tuple(n if n >= 0 else max(0, length + n) for length in self._seen)
        for row, (now, then) in enumerate(zip(self._seen, kept, strict=True)):
            if then > now:
                raise InputError(f"crop({n}): row {row} has {now} tokens; crop can only shorten")
            for store in self._stores:
                oldest = self._highest[row] - store.slots
                if store.window is not None and then and max(0, then + 1 - store.window) < oldest:
                    raise InputError(
                        f"crop({n}): a layer with a window of {store.window} tokens keeps the last {store.slots}, "
                        f"and row {row} has written {self._highest[row]}; crop at most {self.plan.block_size} "
                        "tokens back, or reset() and compute again"
                    )
        self._seen, self._step = kept, None
        self._highest = tuple(h if s else 0 for h, s in zip(self._highest, kept, strict=True))

    def fork(self) -> "KVCache":
        """An independent copy: what one of the two writes, the other never sees."""
        other = KVCache(self.config, self.plan, self.batch_size)
        other._stores = [store.clone() for store in self._stores]
        other._seen, other._highest = self._seen, self._highest
        return other

    def reset(self) -> None:
        """Forget every token. Allocated memory stays."""
        self._seen = self._highest = (0,) * self.batch_size
        self._step = None

    def _enter(self, layer: int, k: Tensor, v: Tensor) -> tuple[Step, ContiguousStore, dict[str, Tensor]]:
        """Store what a layer got: its step, its store, and the new entries as they are stored.

        The first layer opens a step of its own when none was announced, or when the last one was interrupted.
        """
        tokens, step = k.shape[2], self._step
        if step is None or (layer == 0 and not (step.announced and step.next_layer == 0)):
            self.begin(tokens, device=k.device)
            step = self._step
            step.announced = False
        if layer != step.next_layer or tokens != step.width:
            raise InputError(
                f"layer {layer} with {tokens} tokens: expected layer {step.next_layer} with {step.width} tokens; "
                "call each layer once, in order, with the tokens announced to begin()"
            )
        store, new = self._stores[layer], self._encode({"k": k, "v": v})
        store.reserve(max(step.total), new["k"].dtype, k.device)
        if step.width > 1 and store.window is not None and max(step.past) > 0:
            # Into a ring only at the commit: these queries, and a step after an interruption, need what is there.
            step.staged.append((store, {name: x[:, :, -store.slots :].clone() for name, x in new.items()}))
        else:
            self._write(store, new, step)
        return step, store, new

    def _leave(self, step: Step) -> None:
        step.next_layer += 1
        if step.next_layer == len(self._stores) and not step.announced:
            self.commit()

    def _encode(self, new: dict[str, Tensor]) -> dict[str, Tensor]:
        """The new entries as they are stored."""
        return new if self._dtype is None else {name: x.to(self._dtype) for name, x in new.items()}

    def _write(self, store: ContiguousStore, new: dict[str, Tensor], step: Step) -> None:
        """Write the step's tokens into the store; the last ones, where a ring has no room for all."""
        columns = min(step.width, store.slots)
        new = {name: values[:, :, -columns:] for name, values in new.items()}
        if step.uniform:
            store.write_span(new, step.total[0] - columns)
        else:
            if ("ragged", columns) not in step.shared:
                positions = step.positions[:, -columns:]
                row, token = (positions >= 0).nonzero(as_tuple=True)
                step.shared["ragged", columns] = (row, token, positions[row, token])
            store.write_ragged(new, *step.shared["ragged", columns])
        if store.window is not None:
            self._highest = tuple(
                total if past == 0 else max(highest, total)
                for highest, past, total in zip(self._highest, step.past, step.total, strict=True)
            )

    def _decode(self, store: ContiguousStore, q: Tensor, step: Step) -> Tensor:
        """One query per row over everything in the window: the fused kernel."""
        if ("decode", store.window) not in step.shared:
            total = torch.tensor(step.total)
            lengths = total if store.window is None else total.clamp(max=store.window)
            starts = None if store.window is None else ((total - lengths) % store.slots).to(q.device)
            step.shared["decode", store.window] = (lengths.to(q.device), starts)
        lengths, starts = step.shared["decode", store.window]
        k, v = (store.arrays[name].to(q.dtype) for name in ("k", "v"))
        return contiguous_decode(q[:, :, 0], k, v, lengths, starts)[:, :, None]

    def _attend_fresh(self, store: ContiguousStore, q: Tensor, new: dict[str, Tensor], step: Step) -> Tensor:
        """Nothing was stored before: the new tokens see only each other, as they were stored."""
        k, v = (new[name].to(q.dtype) for name in ("k", "v"))
        if step.uniform and (store.window is None or step.width <= store.window):
            return attention(q, k, v, causal=True)
        return attention(q, k, v, self._mask(step, step.positions, store.window))

    def _attend_filled(self, store: ContiguousStore, q: Tensor, step: Step) -> Tensor:
        """A chunk of queries over positions 0 … max(total) - 1, its own keys included."""
        keys = max(step.total)
        k, v = (store.arrays[name][:, :, :keys].to(q.dtype) for name in ("k", "v"))
        return attention(q, k, v, self._mask(step, torch.arange(keys, device=q.device)[None], None))

    def _attend_ring(self, store: ContiguousStore, q: Tensor, new: dict[str, Tensor], step: Step) -> Tensor:
        """A chunk of queries over what the window still holds and the chunk itself, which is not in the ring yet."""
        old = min(store.window - 1, max(step.past))
        past = torch.tensor(step.past, device=q.device)
        # (batch, old); negative where a row has no such token
        before = past[:, None] - old + torch.arange(old, device=q.device)
        k, v = (torch.cat((store.gather(name, before), new[name]), dim=2).to(q.dtype) for name in ("k", "v"))
        return attention(q, k, v, self._mask(step, torch.cat((before, step.positions), dim=1), store.window))

    def _mask(self, step: Step, key_position: Tensor, window: int | None) -> Tensor:
        """The step's mask for one kind of layer, made once."""
        if ("mask", window) not in step.shared:
            rows = slice(1) if step.uniform else slice(None)  # equal rows share one mask
            step.shared["mask", window] = causal_mask(step.positions[rows], key_position[rows], window)
        return step.shared["mask", window]

    def _check(self, layer: int, tensors: dict[str, Tensor]) -> None:
        """Refuse tensors that do not fit, before anything is touched."""
        layer = read_count("layer", layer, least=0, most=len(self._stores) - 1)
        for name, x in tensors.items():
            if not isinstance(x, Tensor):
                raise InputError(
                    f"{name} is a {type(x).__name__}: expected a tensor (batch, heads, tokens, dim)"
                )
        k = tensors["k"]
        tokens = k.shape[2] if k.dim() == 4 else "tokens"
        for name, x in tensors.items():
            heads = self.config.num_heads if name == "q" else self.config.num_kv_heads
            expected = (self.batch_size, heads, tokens, self.config.head_dim)
            if tuple(x.shape) != expected:
                raise InputError(
                    f"{name} has shape {tuple(x.shape)}: expected (batch, heads, tokens, dim) = {expected}"
                )
            if x.dtype != k.dtype or x.device != k.device or not x.is_floating_point():
                raise InputError(
                    f"{name} is {x.dtype} on {x.device} and k is {k.dtype} on {k.device}: expected one "
                    "floating-point dtype and one device"
                )
        held = self._stores[layer].arrays.get("k")
        if held is not None and (held.device != k.device or held.dtype != (self._dtype or k.dtype)):
            raise InputError(
                f"k is {k.dtype} on {k.device}, but the cache holds {held.dtype} on {held.device}: "
                "use one cache per dtype and device"
            )
