"""Paged caches interrupted anywhere, copied, offloaded into files that change, in pools that are exhausted."""

import copy
import json
import os
import pickle

import pytest
import torch
from paged_refusals import KINDS, all_free, filled, memory_of, refused
from safetensors import safe_open
from safetensors.torch import save_file
from tiny_models import check_next, model_named, tokens

import kvcourse as kv
from kvcourse.errors import PoolExhausted
from kvcourse.storage import BlockPool, BlockTable, Offloaded, PagedMemory, PrefixIndex, offload, paged
from kvcourse.storage.pages import Pages


@pytest.fixture(params=KINDS)
def model(request):
    return model_named(request.param)


def interrupted(monkeypatch, owner, name, count, call):
    """Whether `call` was interrupted, by Ctrl-C in the place of the count-th call of owner.name."""
    function, calls = getattr(owner, name), []

    def stop(*args, **options):
        calls.append(name)
        if len(calls) == count:
            raise KeyboardInterrupt
        return function(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, stop)
        try:
            call()
        except KeyboardInterrupt:
            return True
    return False


PLACES = {
    "step": [(BlockPool, "allocate"), (Pages, "copy"), (paged, "store_kv"), (Pages, "write")],
    "select": [(BlockPool, "fork")],
    "reuse": [(PrefixIndex, "find"), (BlockPool, "touch")],
    "publish": [(PrefixIndex, "insert"), (BlockPool, "label")],
    "offload": [(Pages, "read"), (offload, "save_file")],
    "restore": [(BlockPool, "allocate"), (Pages, "fill"), (BlockPool, "fork")],
}


@pytest.mark.parametrize("what", PLACES)
def test_an_interrupt_changes_nothing(model, monkeypatch, tmp_path, what):
    happened = []
    for owner, name in PLACES[what]:
        for count in range(1, 5):
            memory = memory_of(model)
            happened.append(stopped_once(model, memory, monkeypatch, tmp_path, what, owner, name, count))
            assert all_free(memory)
    assert any(happened)


def stopped_once(model, memory, monkeypatch, folder, what, owner, name, count):
    """Interrupt one call, and go on with every cache. Returns whether there was something to interrupt."""
    used, texts = filled(model, memory)
    used.publish(texts)
    saved = used.fork().offload()
    order = (1, 0, 1)
    beams, own = used.select(order), [list(texts[row]) for row in order]
    fresh = kv.KVCache(model.config, batch_size=2, memory=memory)
    if what == "publish":  # of blocks that are not findable yet
        memory.groups[0].index.clear()
    findable = [pool.num_labelled for pool in memory.pools]
    calls = {
        "step": lambda: model(tokens(3, 5, seed=3), cache=beams),
        "select": lambda: beams.select([0, 2, 2]),
        "reuse": lambda: fresh.reuse(texts),
        "publish": lambda: beams.publish(own),
        "offload": lambda: beams.offload(folder / "rows"),
        "restore": lambda: fresh.restore(saved),
    }
    if not interrupted(monkeypatch, owner, name, count, calls[what]):
        (folder / "rows").unlink(missing_ok=True)
        return False
    assert (used.seen, beams.seen, fresh.seen) == ((10, 10), (10, 10, 10), (0, 0))
    assert [pool.num_labelled for pool in memory.pools] == findable
    assert list(folder.iterdir()) == []
    check_next(model, fresh, [[], []], tokens(2, 6, seed=4))
    check_next(model, beams, own, tokens(3, 2, seed=5))
    check_next(model, used, texts, tokens(2, 3, seed=6))
    return True


@pytest.mark.parametrize("what", ["crop", "reset", "restore"])
def test_an_interrupt_between_a_cache_and_its_tables(model, monkeypatch, what):
    """What a table still holds may be another row's, too: the next step does not write into it."""
    memory = memory_of(model)
    used, texts = filled(model, memory)
    saved = used.fork().offload()
    beams = used.select([1, 0, 1])
    if what == "restore":
        beams = kv.KVCache(model.config, batch_size=2, memory=memory)
    call = {"crop": lambda: beams.crop(7), "reset": beams.reset, "restore": lambda: beams.restore(saved)}[
        what
    ]
    owner, name = (BlockPool, "free") if what == "restore" else (BlockTable, "trim")
    happened = interrupted(monkeypatch, owner, name, 1, call)
    assert happened
    left = [[] for _ in beams.seen] if what != "crop" else [texts[row][:7] for row in (1, 0, 1)]
    check_next(model, beams, left, tokens(len(left), 3, seed=1))
    check_next(model, used, texts, tokens(2, 3, seed=2))


def test_a_pool_that_could_not_grow_grows_later(monkeypatch):
    model = model_named("window_then_full")
    cache, texts = kv.KVCache(model.config, kv.Plan(storage="paged", block_size=1)), [[]]
    check_next(model, cache, texts, tokens(1, 3))
    for owner, name, count in ((Pages, "grown", 1), (Pages, "grown", 2), (BlockPool, "grow", 1)):
        long = tokens(1, 200, seed=1)
        assert interrupted(monkeypatch, owner, name, count, lambda long=long: model(long, cache=cache))
        assert cache.seen == (3,)
        check_next(model, cache.fork(), [list(texts[0])], tokens(1, 40, seed=2))
    check_next(model, cache, texts, tokens(1, 200, seed=3))


class TestAllOrNothing:
    def test_prefixes_of_one_row_are_not_taken_when_another_is_wrong(self, model):
        memory = memory_of(model)
        used, texts = filled(model, memory)
        used.publish(texts)
        fresh = kv.KVCache(model.config, batch_size=2, memory=memory)
        refused(lambda: fresh.reuse([texts[0], ["x"]]), memory, used, fresh)
        other, own = filled(model, memory, seed=1)
        refused(lambda: other.publish([own[0], [1.5] * 10]), memory, used, fresh, other)

    def test_wrong_tokens_for_blocks_that_are_known(self, model):
        memory = memory_of(model)
        cache, texts = filled(model, memory)
        cache.publish([texts[0][:10], texts[1][:10]])
        more, own = filled(model, memory, rows=1, seed=2)
        wrong = [[(token + 1) % 61 for token in text] for text in texts]
        joined = kv.KVCache.cat([more, cache])
        refused(lambda: joined.publish([own[0], *wrong]), memory, joined, match="other tokens")

    def test_exhausted_pools(self, model):
        memory = memory_of(model, num_blocks=12)
        cache, texts = filled(model, memory, rows=1)
        cache.publish(texts)
        saved = cache.fork().offload()
        hog, _ = filled(model, memory, rows=1, size=22, seed=1)
        fresh = kv.KVCache(model.config, batch_size=1, memory=memory)
        twice = cache.select([0, 0])
        for call in (
            lambda: model(tokens(2, 15), cache=twice),
            lambda: model(tokens(1, 30), cache=fresh),
            lambda: kv.KVCache(model.config, memory=PagedMemory(model.config, 2, 4, torch.float64)).restore(
                saved
            ),
        ):
            refused(call, memory, cache, hog, fresh, twice, error=PoolExhausted)
        check_next(model, cache, texts, tokens(1, 1))


class TestCopies:
    @pytest.mark.parametrize("plan", [kv.Plan(), kv.Plan(storage="paged", block_size=4)])
    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
    def test_a_copy_is_independent(self, model, copied, plan):
        cache, texts = kv.KVCache(model.config, plan, batch_size=2), [[], []]
        check_next(model, cache, texts, tokens(2, 10))
        other, own = copied(cache), copy.deepcopy(texts)
        for seed in range(3):
            check_next(model, other, own, tokens(2, 2, seed=seed))
            check_next(model, cache, texts, tokens(2, 2, seed=seed + 9))
        assert other.memory is cache.memory

    def test_pickle_says_what_to_do_instead(self):
        model = model_named("gqa")
        memory = memory_of(model)
        cache, _ = filled(model, memory)
        refused(lambda: pickle.dumps(cache), memory, cache, match="offload")

    def test_inference_mode_and_inputs_that_want_gradients(self, model):
        memory = memory_of(model)
        with torch.inference_mode():
            cache = kv.KVCache(model.config, batch_size=1, memory=memory)
            model(tokens(1, 7), cache=cache)
            saved = cache.fork().offload()
        texts = tokens(1, 7).tolist()
        check_next(model, cache, texts, tokens(1, 3))
        other = kv.KVCache(model.config, batch_size=1, memory=memory)
        other.restore(saved)
        with torch.enable_grad():
            trained = copy.deepcopy(model).requires_grad_(True)
            check_next(trained, other, tokens(1, 7).tolist(), tokens(1, 3))
        assert not any(p.values.requires_grad for g in memory.groups for p in g.all_pages())


class TestFiles:
    def test_two_offloads_into_one_file(self, model, tmp_path):
        memory = memory_of(model)
        cache, _ = filled(model, memory, rows=1)
        other, own = filled(model, memory, rows=1, seed=1)
        first, second = cache.offload(tmp_path / "rows"), other.offload(tmp_path / "rows")
        refused(lambda: cache.restore(first), memory, cache, match="other blocks by now")
        other.restore(second)
        check_next(model, other, own, tokens(1, 2))

    def test_a_model_with_another_window(self, tmp_path):
        full = kv.tiny_model(vocab_size=61, dtype=torch.float64)
        cache, _ = filled(full, memory_of(full), rows=1, size=20)
        saved = cache.offload()
        for name in ("window_4", "window_then_full"):
            memory = memory_of(model_named(name))
            other = kv.KVCache(model_named(name).config, memory=memory)
            refused(lambda other=other: other.restore(saved), memory, other, match="do not fit")

    @pytest.mark.parametrize(
        "change",
        [
            {"seen": [1, 10]},
            {"seen": [-1, 10]},
            {"seen": "ab"},
            {"seen": 3},
            {"tables": []},
            {"tables": None},
            {"tables": [[[1, 2, 3], [4, 5]]]},
            {"tables": [[[1, 2, 9], [4, 5, 6]]]},
            {"tables": [[[1, 2, -3], [4, 5, 6]]]},
            {"tables": [[[1, 0, 3], [4, 5, 6]]]},
            {"tables": [[[1, 1, 3], [4, 5, 6]]]},
            {"tables": [[[1, 2, "3"], [4, 5, 6]]]},
            {"windows": [7]},
            {"windows": []},
            {"dtype": "float32"},
            {"dtype": "Tensor"},
            {"dtype": "int64"},
            {"dtype": 3},
            {"key": None},
        ],
        ids=str,
    )
    def test_a_file_that_was_changed(self, tmp_path, change):
        model, path = model_named("gqa"), tmp_path / "rows"
        memory = memory_of(model)
        cache, _ = filled(model, memory)
        cache.offload(path)
        with safe_open(path, "pt") as file:
            planes = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about = json.loads(file.metadata()["kvcourse"]) | change
        save_file(planes, path, {"kvcourse": json.dumps(about)})
        target = kv.KVCache(model.config, kv.Plan(storage="paged", block_size=4), batch_size=2)
        if change == {"key": None}:  # nobody compares it with anything
            target.restore(Offloaded.open(path))
            return
        refused(lambda: cache.restore(Offloaded.open(path)), memory, cache)
        refused(lambda: target.restore(Offloaded.open(path)), target.memory, target)
        assert target.memory.kind is None

    def test_no_room_on_the_disk(self, monkeypatch, tmp_path):
        model, path = model_named("gqa"), tmp_path / "rows"
        memory = memory_of(model)
        cache, texts = filled(model, memory)
        path.write_bytes(b"what was there")

        def full(planes, part, metadata):
            part.write_bytes(b"half")
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(offload, "save_file", full)
            refused(lambda: cache.offload(path), memory, cache, match="No space left")
        assert path.read_bytes() == b"what was there"
        assert list(tmp_path.iterdir()) == [path]
        check_next(model, cache, texts, tokens(2, 2))

    def test_a_device_is_not_replaced(self, tmp_path):
        model, pipe = model_named("gqa"), tmp_path / "pipe"
        if not hasattr(os, "mkfifo"):
            pytest.skip("no pipes here")
        os.mkfifo(pipe)
        memory = memory_of(model)
        cache, _ = filled(model, memory)
        refused(lambda: cache.offload(pipe), memory, cache, match="no file")
        assert pipe.is_fifo()
