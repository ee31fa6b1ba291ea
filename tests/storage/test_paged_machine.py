"""Random operations on caches that share a small paged memory: see paged_machine.py for what is checked."""

import gc
import inspect
import random

import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from paged_machine import KEYS, PagedMachine
from paged_model import Numbers
from paged_steps import FULL, HEADS, SLIDING

import kvcourse as kv
from kvcourse.errors import InputError
from kvcourse.storage import BlockPool, BlockTable
from kvcourse.storage.paged_memory import Group


def config_of(**fields):
    return kv.tiny_model(**HEADS | fields).config


WINDOW = config_of(sliding_window=4, layer_types=(SLIDING,) * 2)
MIXED = config_of(sliding_window=5, layer_types=(SLIDING, FULL))
LATENTS = kv.tiny_model(num_layers=2, num_heads=2, head_dim=4, kv_lora_rank=3, qk_rope_head_dim=2).config
MACHINES = {
    "heads": {},
    "heads, parts of blocks": {"token_granular": True},
    "blocks of one": {"block_size": 1, "num_blocks": 36},
    "window": {"config": WINDOW},
    "window and full": {"config": MIXED},
    "latents": {"config": LATENTS, "token_granular": True},
    "growing": {"config": MIXED, "num_blocks": 2, "grows": True},
}


RUNS = settings(max_examples=12, stateful_step_count=40, deadline=None, derandomize=True, database=None)
each_machine = pytest.mark.parametrize("name", MACHINES)


def machine_of(name):
    fields = dict(MACHINES[name])
    if "config" in fields:
        fields["numbers"] = Numbers(fields["config"])
    return type("Machine", (PagedMachine,), fields)


@each_machine
def test_paged_memory(name):
    """Hypothesis looks for a short sequence that fails."""
    run_state_machine_as_test(machine_of(name), settings=RUNS)


WEIGHTS = {
    "append": 4, "append_ragged": 5, "interrupted": 1, "new": 1, "drop": 1, "reset": 1, "fork": 2, "select": 2,
    "cat": 1, "crop": 3, "publish": 3, "reuse": 6, "refused_calls": 1, "offload": 2, "restore": 3,
}  # fmt: skip


def drive(name, steps, seed=0, sabotage=None):
    """The same operations on one memory all the time, drawn with weights, so that it is full again and again."""
    machine, draw = machine_of(name)(), random.Random(seed)
    arguments = {
        "which": lambda: draw.randrange(1000),
        "what": lambda: draw.randrange(1000),
        "first": lambda: draw.randrange(1000),
        "second": lambda: draw.randrange(1000),
        "size": lambda: draw.randrange(1, 8),
        "sizes": lambda: [draw.randrange(1, 8) for _ in range(4)],
        "more": lambda: [draw.randrange(1, 8) for _ in range(4)],
        "order": lambda: [draw.randrange(4) for _ in range(draw.randrange(1, 5))],
        "n": lambda: draw.randrange(-8, 13),
        "rows": lambda: draw.randrange(1, 3),
        "layers": lambda: draw.randrange(2),
        "keys": lambda: draw.choice(KEYS),
    }
    machine.start()
    if sabotage:
        sabotage(machine)
    try:
        for operation in draw.choices(list(WEIGHTS), list(WEIGHTS.values()), k=steps):
            function = getattr(machine, operation)
            names = inspect.signature(function).parameters
            function(**{name: arguments.get(name, lambda: draw.random() < 0.5)() for name in names})
            machine.all_is_whole()
    finally:
        machine.teardown()
    return machine


@each_machine
def test_a_thousand_operations_on_one_memory(name):
    drive(name, 1000)


def fork_without_references(table):
    other = BlockTable(table.pool, table.window)
    other.adopt(list(table.blocks), table.num_stored)
    return other


FAULTS = {
    "no copy before a write": (BlockPool, "is_writable", lambda self, block: True),
    "a copy that is empty": (Group, "copy_blocks", lambda self, pairs: None),
    "a fork without references": (BlockTable, "fork", fork_without_references),
}


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # caches that free a block twice
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault, monkeypatch):
    monkeypatch.setattr(*FAULTS[fault])
    with pytest.raises((AssertionError, ValueError)):
        drive("heads", 1000)
    gc.collect()  # now, while its complaints are expected


def test_an_index_that_is_not_told_is_noticed():
    """It goes on finding blocks that were given out again."""

    def sabotage(machine):
        for pool in machine.memory.pools:
            pool.on_reuse = None

    with pytest.raises((AssertionError, ValueError)):
        drive("heads", 1000, sabotage=sabotage)


def test_cat_in_the_middle_of_a_step():
    caches = [kv.KVCache(PagedMachine.config, kv.Plan(storage="paged")) for _ in range(2)]
    caches[0].begin(1)
    caches[0].append(0, *torch.zeros(2, 1, 2, 1, 4))
    with pytest.raises(InputError):
        kv.KVCache.cat(caches)
