"""The harness with a clock that the test moves by hand: order, warm-up, medians, undo, budget, JSON."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import MANY

from kvcourse.bench import Comparison, compare, harness
from kvcourse.bench.harness import Arm
from kvcourse.errors import InputError


class Clock:
    """A clock that only moves when something calls `spend`."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += seconds


def timed(clock, arms, **options):
    """compare() on the fake clock, with no inner repetitions unless asked for."""
    options.setdefault("min_seconds", 0.0)
    return compare(arms, clock=clock, synchronize=lambda: None, progress=False, **options)


def spending(clock, *durations):
    """A function whose n-th call takes the n-th duration, the last one from then on."""
    left = list(durations)

    def call(*_):
        clock.spend(left.pop(0) if len(left) > 1 else left[0])

    return call


def test_every_round_runs_every_arm_and_the_order_rotates():
    clock, log = Clock(), []
    arms = {name: lambda name=name: (log.append(name), clock.spend(1.0)) for name in "abc"}
    timed(clock, arms, repeats=4, warmup=0)
    rounds = ["".join(log[i : i + 3]) for i in range(0, 12, 3)]
    assert rounds == ["abc", "bca", "cab", "abc"]


def test_warmup_is_not_measured():
    clock = Clock()
    result = timed(clock, {"a": spending(clock, 100.0, 50.0, 1.0, 2.0, 3.0)}, repeats=3, warmup=2)
    assert result["a"].samples == pytest.approx((1.0, 2.0, 3.0))
    assert result["a"].median == pytest.approx(2.0)


def test_inputs_are_fresh_each_round_shared_by_its_arms_and_made_outside_the_timed_part():
    clock, made, seen = Clock(), [], []

    def setup():
        clock.spend(1000.0)
        made.append(object())
        return made[-1], len(made)

    def arm(thing, number):
        seen.append((thing, number))
        clock.spend(1.0)

    result = timed(clock, {"a": arm, "b": arm}, setup=setup, repeats=3, warmup=1)
    assert seen == [(thing, number) for number, thing in enumerate(made, 1) for _ in "ab"]
    assert len(made) == 4
    assert result["a"].samples == pytest.approx((1.0,) * 3)


def test_one_input_is_one_argument_even_when_it_is_a_list():
    seen = []
    timed(Clock(), {"a": seen.append}, setup=lambda: [1, 2], repeats=1, warmup=0)
    assert seen == [[1, 2]]


def test_undo_runs_after_every_call_and_is_not_measured():
    clock, log = Clock(), []

    def arm():
        log.append("call")
        clock.spend(0.25)

    def undo():
        log.append("undo")
        clock.spend(7.0)

    result = timed(clock, {"a": arm}, after={"a": undo}, repeats=2, warmup=1, min_seconds=1.0)
    assert result["a"].inner == 4
    assert log == ["call", "undo"] * (1 + 2 * 4)
    assert result["a"].samples == pytest.approx((0.25, 0.25))


def test_short_arms_repeat_and_long_ones_do_not():
    clock = Clock()
    arms = {"short": spending(clock, 0.1), "long": spending(clock, 2.0)}
    result = timed(clock, arms, repeats=2, warmup=1, min_seconds=1.0)
    assert (result["short"].inner, result["long"].inner) == (10, 1)
    assert result["short"].samples == pytest.approx((0.1, 0.1))  # per call, not per sample


def test_an_arm_too_fast_for_the_clock_is_repeated_and_bounded():
    result = timed(Clock(), {"a": lambda: None}, repeats=1, warmup=1, min_seconds=1e-3)
    assert result["a"].inner == harness.MAX_INNER


def test_the_device_is_waited_for_inside_the_timed_part():
    clock, queue = Clock(), []

    def wait():
        clock.spend(sum(queue))
        queue.clear()

    arms = {"asynchronous": lambda: queue.append(3.0), "synchronous": lambda: clock.spend(1.0)}
    result = compare(
        arms, clock=clock, synchronize=wait, progress=False, repeats=3, warmup=0, min_seconds=0.0
    )
    assert result["asynchronous"].samples == pytest.approx((3.0,) * 3)
    assert result["synchronous"].samples == pytest.approx((1.0,) * 3)


def test_what_the_inputs_left_to_the_device_is_not_measured():
    clock, queue = Clock(), []

    def wait():
        clock.spend(sum(queue))
        queue.clear()

    result = compare(
        {"a": lambda: queue.append(3.0)}, setup=lambda: queue.append(500.0), clock=clock, synchronize=wait,
        progress=False, repeats=3, warmup=1, min_seconds=0.0,
    )  # fmt: skip
    assert result["a"].samples == pytest.approx((3.0,) * 3)


def test_calls_per_sample_follow_the_last_warm_up_round():
    """The first one also compiles and fills caches: it would make every arm look slow."""
    clock = Clock()
    result = timed(clock, {"a": spending(clock, 9.0, 0.125)}, repeats=1, warmup=2, min_seconds=1.0)
    assert result["a"].inner == 8


def test_warm_up_counts_against_the_time_budget():
    clock = Clock()
    result = timed(clock, {"a": spending(clock, 1.0)}, repeats=100, warmup=4, max_seconds=8.0)
    assert len(result["a"].samples) == 5  # 4 + 5 rounds pass 8 s


def test_time_budget_stops_between_rounds_but_never_before_three():
    clock = Clock()
    budget = timed(clock, {"a": spending(clock, 1.0)}, repeats=100, warmup=0, max_seconds=5.0)
    assert len(budget["a"].samples) == 6  # the round that crosses the budget is finished
    clock = Clock()
    tight = timed(clock, {"a": spending(clock, 1.0)}, repeats=100, warmup=0, max_seconds=0.5)
    assert len(tight["a"].samples) == 3


def test_speedup_is_the_ratio_of_medians():
    result = Comparison({"slow": Arm("slow", (9.0, 6.0, 6.0)), "fast": Arm("fast", (2.0, 1.0, 8.0))}, "slow")
    assert result.speedup("fast") == 3.0
    assert result.speedup("slow") == 1.0
    assert result.speedup("slow", over="fast") == pytest.approx(1 / 3)


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=30))
@MANY
def test_spread_encloses_the_median(samples):
    arm = Arm("a", tuple(samples))
    q1, q3 = arm.quartiles
    ordered = sorted(samples)
    assert ordered[0] <= q1 <= q3 <= ordered[-1]
    assert arm.iqr == q3 - q1
    # At least half of the samples lie on either side of the median, counting those equal to it.
    assert sum(s <= arm.median for s in samples) * 2 >= len(samples)
    assert sum(s >= arm.median for s in samples) * 2 >= len(samples)


def test_quartiles_of_a_known_sample():
    assert Arm("a", (5.0, 1.0, 4.0, 2.0, 3.0)).quartiles == (2.0, 4.0)


def test_json_has_the_numbers_and_where_they_come_from_and_no_name_of_the_machine():
    import platform

    clock = Clock()
    arms = {"a": spending(clock, 4.0), "b": spending(clock, 2.0)}
    text = timed(clock, arms, repeats=3, warmup=0, title="two arms").to_json()
    data = json.loads(text)
    assert set(data) == {
        "title", "baseline", "arms", "date", "machine", "versions", "commit", "command",
    }  # fmt: skip
    assert (data["title"], data["baseline"]) == ("two arms", "a")
    assert set(data["arms"]["b"]) == {
        "median_s", "q1_s", "q3_s", "min_s", "max_s", "inner", "samples_s", "speedup",
    }  # fmt: skip
    assert data["arms"]["b"]["median_s"] == 2.0
    assert data["arms"]["b"]["samples_s"] == [2.0] * 3
    assert data["arms"]["b"]["speedup"] == 2.0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", data["date"])
    assert set(data["machine"]) == {"cpu", "cores", "threads", "ram_bytes", "gpu", "os"}
    assert {"python", "kvcourse", "torch", "triton", "transformers", "numba"} <= set(data["versions"])
    assert data["versions"]["python"] == platform.python_version()
    assert str(Path.home()) not in text
    assert str(Path.cwd()) not in text
    assert platform.node() not in text or len(platform.node()) < 4


def test_prints_as_a_table():
    text = str(Comparison({"old": Arm("old", (0.004,)), "new": Arm("new", (0.001,))}, "old", "title here"))
    assert "title here" in text
    assert "4.00×" in re.sub(r"\s+", " ", text)
    assert "1 ms" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.345, "12.3 s"), (1234.5, "1234 s"), (0.0123, "12.3 ms"), (4.56e-5, "45.6 µs"), (7.0e-9, "7 ns")],
)
def test_seconds_are_printed_with_three_digits(seconds, text):
    assert harness.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("arms", "options", "message"),
    [
        ({}, {}, "no arms"),
        ({"a": len}, {"baseline": "b"}, "'b' is not an arm; the arms are a"),
        ({"a": len}, {"after": {"c": len}}, "'c' is not an arm"),
        ({"a": len}, {"repeats": 0}, "repeats=0: expected a whole number of at least 1"),
        ({"a": len}, {"warmup": -1}, "warmup=-1: expected a whole number of at least 0"),
    ],
)
def test_bad_input_is_named(arms, options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        compare(arms, **options)


def test_progress_is_silent_off_a_terminal(capsys):
    clock = Clock()
    compare({"a": spending(clock, 1.0)}, clock=clock, repeats=2, warmup=0)
    assert capsys.readouterr() == ("", "")
