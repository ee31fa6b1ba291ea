"""KVCache: a plan made real for one model."""

import torch
from torch import Tensor

from kvcourse.attend.arguments import check_tensors
from kvcourse.attend.heads import attend_heads
from kvcourse.attend.latent import attend_latent
from kvcourse.attention.mla import UpProjection, check_up
from kvcourse.counts import read_count
from kvcourse.errors import InputError
from kvcourse.sequences import Sequences
from kvcourse.step import Step
from kvcourse.storage.base import Store


class KVCache(Sequences):
    """Keys and values (or MLA's latents) of a batch of sequences, and attention over them.

    config: the model's ModelConfig. plan: one choice per axis; Plan() by default. batch_size: sequences, which
    may differ in length. memory: a PagedMemory to keep the tokens in, together with other caches; a paged
    plan without one gets its own.

    A forward pass is one step: `begin`, then `attend` once for each layer in order, then `commit`, and only then do
    the new tokens count; `rollback` drops it. A pass that was interrupted anywhere leaves the cache as it was; in the
    commit itself, as it would be after the pass.
    Without padding `attend` alone does; the step then commits itself after the last layer.

    Errors: InputError for a plan that this release cannot run, or a memory that does not fit the model or the plan.
    """

    @torch.no_grad()
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new keys and values of `layer`, and attend to everything it holds.

        q: (batch, num_heads, tokens, head_dim), rotated; k: (batch, num_kv_heads, tokens, head_dim), rotated;
        v: (batch, num_kv_heads, tokens, head_dim). Returns (batch, num_heads, tokens, head_dim); rows of
        padding hold no meaning.

        Errors: InputError for shapes that do not fit, or layers out of order; the cache is unchanged.
        """
        self._require(latent=False)
        queries = {"q": (q, self.config.num_heads, self.config.head_dim)}
        fields = check_tensors(self._store(layer), self.batch_size, queries, {"k": k, "v": v})
        step, store, new = self._enter(layer, fields)
        out = attend_heads(store, q, new, step)
        self._leave(step)
        return out

    @torch.no_grad()
    def attend_latent(
        self, layer: int, q_nope: Tensor, q_rope: Tensor, latent: Tensor, rope: Tensor, up: UpProjection
    ) -> Tensor:
        """The same for MLA: store the new latents and rotary keys of `layer`, and attend to everything it holds.

        q_nope: (batch, num_heads, tokens, qk_nope_head_dim); q_rope: (…, qk_rope_head_dim), rotated.
        latent: (batch, tokens, kv_lora_rank), normed; rope: (batch, tokens, qk_rope_head_dim), rotated.
        up: the layer's maps from latents to keys and values. One token attends in the absorbed form, more expanded.
        Returns (batch, num_heads, tokens, v_head_dim); rows of padding hold no meaning.

        Errors: as in `attend`.
        """
        self._require(latent=True)
        config = self.config
        queries = {
            "q_nope": (q_nope, config.num_heads, config.qk_nope_head_dim),
            "q_rope": (q_rope, config.num_heads, config.qk_rope_head_dim),
        }
        fields = {"latent": latent, "rope": rope}
        fields = check_tensors(self._store(layer), self.batch_size, queries, fields)
        check_up(up, config, q_nope)
        step, store, new = self._enter(layer, fields)
        out = attend_latent(store, q_nope, q_rope, new, step, up, config.attention_scale)
        self._leave(step)
        return out

    @torch.no_grad()
    def append(self, layer: int, *fields: Tensor) -> None:
        """Store a layer's new entries without attending: a prefill that was computed elsewhere.

        fields: k and v as in `attend`, or latent and rope as in `attend_latent`. Order of layers and errors as there.
        """
        names = [field.name for field in self._storage.layers[0].fields]
        if len(fields) != len(names):
            raise InputError(
                f"append() got {len(fields)} tensors: expected {' and '.join(names)} of the layer"
            )
        new = dict(zip(names, fields, strict=True))
        new = check_tensors(self._store(layer), self.batch_size, {}, new)
        step, _, _ = self._enter(layer, new)
        self._leave(step)

    def _enter(self, layer: int, fields: dict[str, Tensor]) -> tuple[Step, Store, dict[str, Tensor]]:
        """Store what a layer got: its step, its store, and the new entries as they are stored.

        The first layer opens a step of its own when none was announced, or when the last one was interrupted.
        """
        first, step = next(iter(fields.values())), self._step
        tokens = first.shape[2]
        if step is None or (layer == 0 and not (step.announced and step.next_layer == 0)):
            self.begin(tokens, device=first.device)
            step = self._step
            step.announced = False
        if step.positions.device != first.device:
            raise InputError(
                f"the step was announced on {step.positions.device}, and its tensors are on {first.device}: give "
                "begin() the device of the model"
            )
        if layer != step.next_layer or tokens != step.width:
            raise InputError(
                f"layer {layer} with {tokens} tokens: expected layer {step.next_layer} with {step.width} tokens; "
                "call each layer once, in order, with the tokens announced to begin()"
            )
        store = self._storage.layers[layer]
        store.prepare(step, first.dtype, first.device)
        new = store.as_stored(fields)
        store.write(new, step)
        return step, store, new

    def _store(self, layer: int) -> Store:
        layers = self._storage.layers
        return layers[read_count("layer", layer, least=0, most=len(layers) - 1)]

    def _leave(self, step: Step) -> None:
        step.next_layer += 1
        if step.next_layer == len(self._storage.layers) and not step.announced:
            self.commit()

    def _require(self, latent: bool) -> None:
        if self.config.is_latent != latent:
            kind, method = ("latents", "attend_latent") if self.config.is_latent else ("heads", "attend")
            raise InputError(f"this model stores {kind}: call {method}()")
