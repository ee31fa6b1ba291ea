"""The benchmark of the block pool: that both arms do the same work, and that its figures are what they say."""

import json

import pytest

from kvcourse.bench import pool as bench
from kvcourse.bench.harness import Arm, Comparison
from kvcourse.errors import InputError
from kvcourse.storage.block_pool import BlockPool


def case(num_blocks, pool_seconds, list_seconds, operations=1000):
    arms = {bench.POOL: Arm(bench.POOL, (pool_seconds,)), bench.LIST: Arm(bench.LIST, (list_seconds,))}
    return bench.Case(num_blocks, operations, Comparison(arms, baseline=bench.LIST))


def test_pool_and_list_hand_out_the_same_blocks():
    pool = BlockPool(30, 16)
    tables = [pool.allocate(3), pool.allocate(1), pool.allocate(8)]
    free, others = pool.free_order()[::-1], [list(table) for table in tables]
    trace = [(0, 5), (2, 1), (1, 8), (2, 8), (0, 1), (0, 2)]
    bench.replay(trace, pool, tables)
    bench.replay_on_list(trace, free, others)
    assert [sorted(table) for table in tables] == [sorted(table) for table in others]
    assert pool.free_order() == free[::-1]
    pool.check()


def test_every_block_given_back_and_taken_is_counted():
    lengths = [3, 1]
    assert bench.operations([(0, 5), (0, 2), (1, 8)], lengths) == (3 + 5) + (5 + 2) + (1 + 8)
    assert bench.operations([], [4]) == 0


@pytest.mark.parametrize("num_blocks", [18, 500])
def test_a_case_leaves_room_for_any_lengths_and_counts_its_work(num_blocks):
    found = bench.measure(num_blocks, repeats=3, calls=400, progress=False)
    assert 2 * 400 < found.operations < 2 * 400 * bench.LARGEST_TABLE
    assert found.operations == bench.measure(num_blocks, repeats=3, calls=400, progress=False).operations
    assert {arm.inner for arm in found.timing.arms.values()} == {1}
    assert found.seconds(bench.POOL) > 0


def test_sizes_go_from_small_to_large(monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda size, repeats, progress: case(size, 2e-4, 1e-4))
    assert [found.num_blocks for found in bench.run((500, 20, 500)).cases] == [20, 500]
    assert [found.num_blocks for found in bench.run().cases] == [1_000, 100_000]


def test_report_and_json():
    report = bench.Report((case(1_000, 2e-4, 5e-5), case(100_000, 2.2e-4, 5.5e-5)))
    data = json.loads(report.to_json())
    assert data["benchmark"] == "pool"
    assert {"machine", "versions", "commit", "command", "date"} <= set(data)
    small, large = data["cases"]
    assert (small["num_blocks"], small["block_operations"]) == (1_000, 1000)
    assert small["ns_per_block_operation"] == pytest.approx({bench.POOL: 200.0, bench.LIST: 50.0})
    assert large["over_list"] == pytest.approx(4.0)
    text = str(report)
    for printed in ("1,000", "100,000", "200 ns", "220 ns", "1.10×", "50 ns", "4.0×"):
        assert printed in text


@pytest.mark.parametrize(("blocks", "repeats"), [((17,), 1), ((0,), 1), ((True,), 1), ((1000,), 0)])
def test_impossible_pools_are_named(blocks, repeats):
    with pytest.raises(InputError, match=r"blocks|repeats"):
        bench.run(blocks, repeats)
