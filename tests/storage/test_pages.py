"""Pages: planes of a codec in blocks, written by slot and read back bit by bit."""

import pytest
import torch
from oracles import left_padded
from tiny_models import gap, model_named, tokens

import kvcourse as kv
from kvcourse.attention.layout import Field
from kvcourse.codecs.base import Codec
from kvcourse.codecs.formats import get_format
from kvcourse.codecs.full_precision import FullPrecision
from kvcourse.errors import InputError
from kvcourse.kernels import mla_decode
from kvcourse.storage.pages import Pages


class Int8(Codec):
    """Codes and one scale per token and head: two planes of different dtypes and widths."""

    format = get_format("int8")
    bits_per_value = 8.5

    def encode(self, x):
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6).float() / 127
        return {"codes": torch.round(x / scale).to(torch.int8), "scale": scale}

    def decode(self, planes):
        return planes["codes"] * planes["scale"].double()


def pages_of(codec, field=None, num_blocks=5, block_size=3):
    field = field or Field("k", (2, 4))
    return Pages(field, codec, num_blocks, block_size, torch.float64, torch.device("cpu"))


@pytest.mark.parametrize(
    "codec", [FullPrecision(), FullPrecision("fp16"), Int8()], ids=["auto", "fp16", "int8"]
)
@pytest.mark.parametrize("field", [Field("k", (2, 4)), Field("latent", (7,))], ids=["heads", "latent"])
def test_what_is_written_is_read_with_the_rounding_that_was_announced(codec, field):
    pages = pages_of(codec, field)
    *heads, dim = field.shape
    x = torch.randn(6, *(heads or [1]), dim, dtype=torch.float64)
    slots = torch.tensor([4, -1, 14, 3, -1, 8])
    pages.write(x, slots)
    blocks, places = slots[[0, 2, 3, 5]] // 3, slots[[0, 2, 3, 5]] % 3
    read = pages.gather(blocks[None], places[None])  # (1, heads, 4, dim)
    expected = pages.as_stored(x[[0, 2, 3, 5]].transpose(0, 1)[None])
    assert torch.equal(read, expected.to(read.dtype))
    assert gap(read[0].transpose(0, 1), x[[0, 2, 3, 5]]) < 0.05


def test_a_slot_of_minus_one_writes_nothing():
    for codec in (FullPrecision(), Int8()):
        pages = pages_of(codec)
        pages.write(torch.ones(2, 2, 4, dtype=torch.float64), torch.tensor([-1, -1]))
        assert all(not plane.any() for plane in pages.planes.values())


def test_blocks_move_bit_by_bit():
    pages = pages_of(Int8())
    for plane in pages.planes.values():
        plane.view(torch.uint8).random_(0, 255)  # NaN payloads too
    before = {name: plane.clone() for name, plane in pages.planes.items()}
    pages.copy([1, 2], [4, 3])
    saved = pages.read([1])
    pages.fill([2], saved)
    for name, plane in pages.planes.items():
        raw, old = plane.view(torch.uint8), before[name].view(torch.uint8)
        assert torch.equal(raw[[4, 3, 2, 1, 0]], old[[1, 2, 1, 1, 0]])


def test_growing_keeps_what_is_there():
    pages = pages_of(FullPrecision())
    pages.write(torch.ones(1, 2, 4, dtype=torch.float64), torch.tensor([14]))
    nbytes = pages.nbytes
    pages.planes = pages.grown(9)
    assert pages.nbytes == nbytes * 9 // 5
    assert pages.values.sum() == 8
    assert pages.values[4, :, 2].sum() == 8


def test_a_codec_that_groups_tokens_is_refused():
    class Kivi(Int8):
        format = get_format("int2")

    with pytest.raises(InputError, match="32 tokens together"):
        pages_of(Kivi())


def test_pages_that_no_memory_holds():
    with pytest.raises(InputError, match="fewer or smaller blocks"):
        pages_of(FullPrecision(), num_blocks=2**31 - 1, block_size=2**20)


@pytest.mark.parametrize("variant", ["gqa", "window_4", "full_then_window", "mla"])
@pytest.mark.parametrize("block_size", [1, 5])
def test_a_model_on_encoded_pages_equals_one_on_rounded_entries(variant, block_size):
    """The generic path: every plan is right, also one that no kernel is written for."""
    model, codec, ids = model_named(variant), Int8(), tokens(2, 30)
    memory = kv.storage.PagedMemory(model.config, 80, block_size, torch.float64, codec=codec)
    cache, plain = (
        kv.KVCache(model.config, batch_size=2, memory=memory),
        kv.KVCache(model.config, batch_size=2),
    )
    for store in plain._storage.layers:  # a contiguous cache that rounds as the codec does
        store.as_stored = rounded(codec)
    for piece in ids.split([11, 1, 6, 1, 11], dim=1):
        assert gap(model(piece, cache=cache), model(piece, cache=plain)) < 1e-10
    assert gap(model(ids[:, :1], cache=cache), model(ids[:, :1], cache=plain)) < 1e-10
    memory.check()


def rounded(codec):
    def as_stored(new):
        return {
            name: codec.decode(codec.encode(x.transpose(1, 2).flatten(0, 1)))
            .unflatten(0, (x.shape[0], x.shape[2]))
            .transpose(1, 2)
            for name, x in new.items()
        }

    return as_stored


@pytest.mark.parametrize("variant", ["gqa", "window_4", "mla"])
@pytest.mark.parametrize("codec", ["fp32", "fp16"])
def test_pages_of_another_type_than_the_model_equal_arrays_of_that_type(variant, codec):
    model, ids = model_named(variant), tokens(2, 20)
    caches = [
        kv.KVCache(model.config, kv.Plan(storage=storage, codec=codec), batch_size=2)
        for storage in ("contiguous", "paged")
    ]
    for piece in ids.split([7, 1, 5, 1, 6], dim=1):
        plain, paged = (model(piece, cache=cache) for cache in caches)
        assert gap(plain, paged) < 1e-10


def test_a_decode_step_converts_the_blocks_of_its_rows_and_not_the_pool(monkeypatch):
    model, sizes = model_named("mla"), []

    def watched(q_latent, q_rope, latent, *others):
        sizes.append(latent.shape[:2].numel())
        return mla_decode(q_latent, q_rope, latent, *others)

    monkeypatch.setattr("kvcourse.attend.latent.mla_decode", watched)
    plan = kv.Plan(storage="paged", codec="fp32", num_blocks=500)
    cache = kv.KVCache(model.config, plan)
    model(tokens(1, 6), cache=cache)
    model(tokens(1, 1), cache=cache)
    assert sizes == [7] * model.config.num_layers


@pytest.mark.parametrize("variant", ["gqa", "window_4", "full_then_window", "mla"])
def test_rows_of_different_length_on_pages_full_of_rubbish(variant):
    """The generic path reads whole blocks: what others left in them, NaN too, reaches no result (case K7)."""
    model = model_named(variant)
    memory = kv.storage.PagedMemory(model.config, 40, 5, torch.float64, codec=FullPrecision("fp32"))
    for group in memory.groups:
        for _, pages in group.named_pages():
            pages.values.fill_(torch.nan)
    paged = kv.KVCache(model.config, batch_size=2, memory=memory)
    plain = kv.KVCache(model.config, kv.Plan(codec="fp32"), batch_size=2)
    for sizes in ((16, 2), (1, 1), (3, 9), (1, 1), (2, 1)):
        ids, mask = left_padded([tokens(1, size, seed=size)[0].tolist() for size in sizes])
        ours, theirs = (model(ids, cache=cache, attention_mask=mask) for cache in (paged, plain))
        for row, size in enumerate(sizes):
            assert gap(ours[row, -size:], theirs[row, -size:]) < 1e-10
