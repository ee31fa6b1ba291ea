"""Blocks that leave the pool and come back: bit by bit, whole or not at all."""

import pytest
import torch
from oracles import left_padded
from tiny_models import check_integrity, check_next, model_named, tokens

import kvcourse as kv
from kvcourse.errors import InputError, PoolExhausted
from kvcourse.storage import Offloaded, PagedMemory


@pytest.fixture(params=["gqa", "window_4", "full_then_window", "mla"])
def model(request):
    return model_named(request.param)


def filled(model, memory=None):
    """A cache of three rows, two of which share what they have, and the rows."""
    memory = memory or PagedMemory(model.config, 60, 4, torch.float64)
    cache, rows = kv.KVCache(model.config, batch_size=2, memory=memory), [[], []]
    check_next(model, cache, rows, *left_padded([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [11, 12, 13]]))
    return cache.select([0, 1, 0]), [list(rows[row]) for row in (0, 1, 0)]


def free(memory):
    return [pool.num_free for pool in memory.pools]


@pytest.mark.parametrize("to_disk", [False, True])
def test_there_and_back_into_other_blocks(model, tmp_path, to_disk):
    cache, rows = filled(model)
    memory = cache.memory
    held = cache.nbytes
    saved = cache.offload(tmp_path / "rows.safetensors" if to_disk else None)
    assert cache.seen == (0, 0, 0)
    assert cache.nbytes == 0
    assert saved.nbytes == held
    other = kv.KVCache(model.config, memory=memory)  # takes the blocks that were freed
    check_next(model, other, [[]], tokens(1, 9))
    cache.restore(saved)
    assert cache.nbytes == held  # what was shared is shared again
    check_integrity(cache)
    for seed in range(3):
        check_next(model, cache, rows, tokens(3, 2, seed=seed))


def test_another_process_opens_the_file(model, tmp_path):
    cache, rows = filled(model)
    cache.offload(tmp_path / "rows")
    plan = kv.Plan(storage="paged", block_size=4)
    other = kv.KVCache(model.config, plan, batch_size=3)
    other.restore(Offloaded.open(tmp_path / "rows"))
    check_next(model, other, rows, tokens(3, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_bit_survives(dtype, tmp_path):
    model = model_named("gqa")
    memory = PagedMemory(model.config, 9, 4, dtype)
    cache = kv.KVCache(model.config, memory=memory)
    shape = (1, 2, 7, model.config.head_dim)
    for layer in range(2):
        cache.append(layer, torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype))
    for _, pages in memory.groups[0].named_pages():
        pages.values.view(torch.uint8).random_(0, 256)
    table = list(cache._storage.rows[0].tables[0].blocks)
    before = [pages.values[table].view(torch.uint8).clone() for _, pages in memory.groups[0].named_pages()]
    saved = cache.offload(tmp_path / "bits")
    for _, pages in memory.groups[0].named_pages():
        pages.values.view(torch.uint8).random_(0, 256)
    cache.restore(saved)
    table = list(cache._storage.rows[0].tables[0].blocks)
    for (_, pages), bits in zip(memory.groups[0].named_pages(), before, strict=True):
        assert torch.equal(pages.values[table].view(torch.uint8), bits)


def test_a_pool_without_room_takes_nothing(model):
    cache, rows = filled(model)
    saved = cache.offload()
    small = PagedMemory(model.config, 3, 4, torch.float64)
    target = kv.KVCache(model.config, batch_size=3, memory=small)
    with pytest.raises(PoolExhausted):
        target.restore(saved)
    assert free(small) == [2] * len(small.pools)
    assert target.seen == (0, 0, 0)
    cache.restore(saved)
    check_next(model, cache, rows, tokens(3, 2))


class TestRefusals:
    def test_what_does_not_fit(self):
        saved = filled(model_named("gqa"))[0].offload()
        for name, size, dtype in (
            ("mha", 4, torch.float64),
            ("gqa", 5, torch.float64),
            ("gqa", 4, torch.float32),
        ):
            config = model_named(name).config
            cache = kv.KVCache(config, batch_size=3, memory=PagedMemory(config, 60, size, dtype))
            with pytest.raises(InputError, match="do not fit"):
                cache.restore(saved)
            assert free(cache.memory) == [59]

    def test_another_number_of_rows_and_rows_with_tokens(self):
        model = model_named("gqa")
        cache, _ = filled(model)
        saved = cache.offload()
        with pytest.raises(InputError, match="batch_size=3"):
            kv.KVCache(model.config, memory=cache.memory).restore(saved)
        model(tokens(3, 1), cache=cache)
        with pytest.raises(InputError, match="reset"):
            cache.restore(saved)
        with pytest.raises(InputError, match="what offload"):
            kv.KVCache(model.config, memory=cache.memory).restore(None)

    def test_nothing_to_move(self):
        with pytest.raises(InputError, match="no tokens"):
            kv.KVCache(model_named("gqa").config, kv.Plan(storage="paged")).offload()
        with pytest.raises(InputError, match="storage='paged'"):
            kv.KVCache(model_named("gqa").config).offload()

    def test_a_file_that_cannot_be_written_moves_nothing(self, tmp_path):
        model = model_named("gqa")
        cache, rows = filled(model)
        with pytest.raises(InputError, match="cannot be written"):
            cache.offload(tmp_path / "no folder" / "rows")
        check_next(model, cache, rows, tokens(3, 2))
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("content", [None, b"", b"text", b"\x08\0\0\0\0\0\0\0{}      "])
    def test_a_file_that_is_something_else(self, tmp_path, content):
        path = tmp_path / "rows"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError, match="offload"):
            Offloaded.open(path)

    def test_a_file_that_was_cut_off_after_it_was_opened(self, tmp_path):
        cache, _ = filled(model_named("gqa"))
        saved = cache.offload(tmp_path / "rows")
        data = saved.path.read_bytes()
        saved.path.write_bytes(data[: len(data) // 2])
        with pytest.raises(InputError, match="cannot be read"):
            cache.restore(saved)
        assert free(cache.memory) == [59]
        saved.path.write_bytes(data)
        cache.restore(saved)
