"""The simulated server: against one that moves token by token, and what no schedule may do."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_by_one import BUDDY, OneByOne

from kvcourse import results
from kvcourse.bench import allocators, traces, utilisation
from kvcourse.bench.allocators import Paged
from kvcourse.bench.batching import serve
from kvcourse.bench.traces import Request
from kvcourse.cli import main
from kvcourse.errors import InputError

STATIC = ("max length", "power of two", "oracle")
KINDS = (*STATIC, *BUDDY, "paged")


@st.composite
def cases(draw):
    """Requests that fit, a policy, and its parameters."""
    requests = draw(st.lists(st.builds(Request, st.integers(0, 40).map(lambda ms: ms / 1000),
                                       st.integers(1, 20), st.integers(1, 24)), min_size=1, max_size=9))  # fmt: skip
    block_size, whole = draw(st.integers(1, 9)), draw(st.booleans())
    watermark = draw(st.sampled_from([0.0, 0.01, 0.2]))
    max_length = draw(st.integers(44, 50))
    capacity = draw(st.integers(max(64, max_length + block_size), 160))
    step_seconds = draw(st.sampled_from([None, 0.001, 0.004]))
    kind = draw(st.sampled_from(KINDS))
    return requests, kind, capacity, max_length, block_size, watermark, whole, step_seconds


def policy_of(kind, block_size, watermark, whole):
    static = {policy.name: policy for policy in (*allocators.STATIC, *allocators.BUDDY)}
    return Paged(block_size, watermark, whole) if kind == "paged" else static[kind]


@settings(max_examples=300, deadline=None)
@given(cases())
def test_jumping_over_steps_counts_what_single_steps_count(case):
    requests, kind, capacity, max_length, block_size, watermark, whole, step_seconds = case
    expected = OneByOne(*case).run()
    memory = policy_of(kind, block_size, watermark, whole).memory(capacity, max_length)
    service = serve(requests, memory, step_seconds)
    for name in ("total", "waiting"):
        assert vars(getattr(service, name)) == {
            key: expected.counts[name][key] for key in vars(service.total)
        }
    assert (service.idle, service.preemptions, service.recomputed) == (
        expected.idle, expected.preemptions, expected.recomputed,
    )  # fmt: skip
    # Nothing is lost or made twice, however often somebody was preempted; every step makes progress.
    assert sorted(service.finished) == list(range(len(requests)))
    assert service.generated == sum(request.output_length for request in requests)
    assert service.total.steps <= service.generated
    if kind != "paged" or whole:
        assert service.preemptions == 0
    if kind == "paged":
        memory.pool.check()
        assert memory.pool.num_free == memory.pool.num_blocks - 1
    else:
        assert memory.holes.holes == ((0, capacity),)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_shares_add_up_to_one(case):
    requests, kind, capacity, max_length, *paged, step_seconds = case
    policy = policy_of(kind, *paged)
    (arm,) = utilisation.run(requests, [policy], capacity, max_length, step_seconds, progress=False).arms
    shares = [arm.utilisation, *arm.waste.values()]
    assert sum(shares) == pytest.approx(1, abs=1e-12)
    assert all(0 <= share <= 1 for share in shares)
    assert tuple(arm.waste) == utilisation.WASTE
    assert arm.utilisation <= arm.of_reserved <= 1
    assert arm.concurrency >= 1


def test_a_pool_too_small_for_two_preempts_often_and_loses_no_token():
    """vLLM's issues 16832 (tokens lost after a preemption) and 25538 (resumed and preempted for ever)."""
    requests = [Request(0, 8, 40) for _ in range(6)]
    for block_size in (1, 4, 8):
        for watermark in (0.0, 0.01):
            memory = Paged(block_size, watermark).memory(56, 64)
            service = serve(requests, memory)
            assert service.preemptions >= 2
            assert service.generated == 6 * 40
            assert service.finished == list(range(6))  # first come, first served
            assert service.total.steps <= 6 * 40
            memory.pool.check()


def test_a_request_that_fills_the_memory_runs_alone():
    memory = Paged(4).memory(16, 16)
    service = serve([Request(0, 9, 8), Request(0, 9, 8)], memory)  # 16 tokens each
    assert (service.total.steps, service.preemptions, service.total.running) == (16, 0, 16)


def test_a_step_with_nobody_to_run_is_no_error():
    """vLLM's issue 11562: an assertion in a step without tokens."""
    requests = [Request(5.0, 4, 2), Request(9.0, 4, 2)]
    service = serve(requests, Paged(4).memory(64, 64), step_seconds=1.0)
    assert (service.idle, service.total.steps, service.finished) == (5 + 2, 4, [0, 1])
    assert service.waiting.steps == 0


def test_requests_arrive_in_the_order_of_their_times():
    requests = [Request(3.0, 1, 2), Request(1.0, 1, 2), Request(3.0, 1, 2)]
    memory = allocators.MAX_LENGTH.memory(64, 64)
    assert serve(requests, memory, step_seconds=1.0).finished == [1, 0, 2]
    assert serve(requests, allocators.MAX_LENGTH.memory(64, 64)).finished == [0, 1, 2]


def test_equal_requests_by_hand():
    """Two arrays of 2,048 slots; a request stores 512 to 1,023 tokens, 767.5 on average."""
    requests = traces.draw("fixed", 10)
    report = utilisation.run(requests, (*allocators.STATIC, Paged(512)), 2 * 2048, progress=False)
    arm = report["max length"]
    assert (arm.concurrency, arm.steps) == (2, 5 * 512)
    assert arm.utilisation == pytest.approx(767.5 / 2048)
    assert arm.waste["reserved for later"] == pytest.approx((1023 - 767.5) / 2048)
    assert arm.waste["reserved, never used"] == pytest.approx((2048 - 1023) / 2048)
    assert arm.waste["no hole fits"] == 0
    oracle = report["oracle"]
    assert oracle.concurrency == 4
    assert oracle.waste["no hole fits"] == pytest.approx((4096 - 4 * 1023) / 4096)
    assert report["power of two"].concurrency == 4  # 512 + 512 slots, one of which is never used
    assert report["power of two"].waste["reserved, never used"] == pytest.approx(4 / 4096)
    # Four blocks of 512 for four prompts; then each needs a second one, the last of which is never full.
    assert report["paged, 512"].waste["no hole fits"] == 0
    assert report["paged, 512"].waste["reserved, never used"] < 1 / 512


ONE = [Request(0, 4, 4)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"requests": []}, "no requests"),
        ({"policies": []}, "no policies"),
        ({"max_length": 7}, "a request of 8 tokens: max_length=7 allows fewer"),
        ({"max_length": 64, "capacity_tokens": 63}, "capacity_tokens=63: a request may have 64 tokens"),
        ({"capacity_tokens": 0}, "capacity_tokens=0"),
        ({"step_seconds": 0}, "step_seconds=0"),
        ({"max_length": 70, "capacity_tokens": 70, "policies": [Paged(64)], "requests": [Request(0, 60, 10)]},
         "request 0 stores 69 tokens and does not fit into a memory of 70"),
    ],
)  # fmt: skip
def test_what_cannot_be_run(options, message):
    with pytest.raises(InputError, match=message):
        utilisation.run(**{"requests": ONE, "progress": False} | options)


@pytest.mark.parametrize(
    "options", [{"block_size": 0}, {"block_size": 4, "watermark": 1}, {"block_size": "4"}]
)
def test_pages_that_cannot_be(options):
    with pytest.raises(InputError):
        Paged(**options)


def test_longer_requests_get_a_larger_memory():
    long = [Request(0, 5000, 10)]
    report = utilisation.run(long, [Paged(16)], progress=False)
    assert (report.max_length, report.capacity_tokens) == (8192, 8 * 8192)
    report = utilisation.run(ONE, [Paged(16)], progress=False)
    assert (report.max_length, report.capacity_tokens) == (2048, 15_728)


def test_a_report_is_printed_stored_and_read():
    report = utilisation.run(traces.draw("alpaca", 40), None, source="forty", progress=False)
    data = json.loads(report.to_json())
    assert {"machine", "versions", "commit", "command", "date"} <= set(data)
    assert data["benchmark"] == "utilisation"
    assert utilisation.Utilisation.from_dict(data) == report
    assert [arm.block_size for arm in report.arms] == [None] * 5 + [2**i for i in range(9)]
    text = str(report)
    for printed in (
        "40 requests",
        "forty",
        "15,728",
        "paged, 256",
        f"{100 * report['oracle'].utilisation:.1f} %",
    ):
        assert printed in text
    with pytest.raises(InputError, match="arm 'paged, 3': expected one of max length, "):
        report["paged, 3"]


def test_the_stored_result_is_what_the_simulation_gives_and_what_the_paper_measured():
    """Fig. 2 and Fig. 13 of arXiv 2309.06180, where arrays lie as a buddy allocator puts them."""
    stored = utilisation.Utilisation.from_dict(results.read("utilisation"))
    policies = [*allocators.STATIC, *allocators.BUDDY, Paged(16), Paged(256)]
    again = utilisation.run(traces.draw(), policies, progress=False)
    for arm in again.arms:
        assert vars(arm) | {"seconds": 0} == vars(stored[arm.name]) | {"seconds": 0}
    longest = stored["max length"]
    shares = [longest.utilisation, *longest.waste.values()]
    assert [100 * share for share in shares] == pytest.approx([20.4, 13.3, 57.3, 8.9], abs=1)
    names = ["max length", *BUDDY, "paged, 16"]
    tokens, at_once = (
        [getattr(stored[name], figure) for name in names] for figure in ("utilisation", "concurrency")
    )
    assert [100 * share for share in tokens] == pytest.approx([20.4, 26.8, 38.2, 96.3], abs=3)
    assert at_once == pytest.approx([7.00, 9.81, 13.62, 30.42], rel=0.08)


# ---- the command ------------------------------------------------------------------------------------


def test_the_command_reads_a_trace(tmp_path, capsys):
    lines = [{"timestamp": 100 * i, "input_length": 600 + i, "output_length": 3} for i in range(5)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    trace = str(tmp_path / "a.jsonl")
    command = ["bench", "utilisation", "--trace", trace, "--blocks", "8,64", "--max-length", "1k"]
    assert main([*command, "--step-ms", "50", "--capacity", "2k", "--requests", "4", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [arm["name"] for arm in data["arms"]] == [*STATIC, *BUDDY, "paged, 8", "paged, 64"]
    assert (data["capacity_tokens"], data["max_length"], data["requests"]) == (2048, 1024, 4)
    assert data["source"] == "a.jsonl"
    assert str(tmp_path) not in json.dumps(data)
    assert main([*command, "--admission", "whole"]) == 0
    assert "paged, 64, whole" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trace", "no/such/file"], "no/such/file: cannot read the trace"),
        (["--trace", "t", "--seed", "1"], "--seed with --trace"),
        (["--trace", "t", "--distribution", "fixed"], "--distribution with --trace"),
        (["--rate", "2"], "--rate without --step-ms"),
        (["--distribution", "none"], "expected one of sharegpt"),
        (["--capacity", "many"], "'many' is not a number of tokens"),
        (["--step-ms", "-1"], "expected a positive number of seconds"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(options, message, capsys):
    assert main(["bench", "utilisation", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
