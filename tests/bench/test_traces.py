"""Requests: drawn ones are reproducible and as described; a trace file is read whole or refused with its line."""

import gzip
import json
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcourse.bench import traces
from kvcourse.bench.traces import Request
from kvcourse.errors import InputError

LINE = {"timestamp": 27, "input_length": 1030, "output_length": 7, "hash_ids": [0, 5, 9]}


def write(path, *lines):
    path.write_text(
        "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), "utf-8"
    )
    return path


@pytest.mark.parametrize("name", traces.DISTRIBUTIONS)
def test_the_same_seed_draws_the_same_requests_and_fewer_are_a_beginning(name):
    requests = traces.draw(name, 50, seed=3)
    assert requests == traces.draw(name, 50, seed=3)
    assert requests[:20] == traces.draw(name, 20, seed=3)
    assert name == "fixed" or requests != traces.draw(name, 50, seed=4)
    assert all(request.input_length >= 1 and request.output_length >= 1 for request in requests)
    assert all(request.input_length + request.output_length <= 2048 for request in requests)
    assert {request.arrival for request in requests} == {0.0}


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"), [("sharegpt", 161.31, 337.99), ("alpaca", 19.31, 58.45)]
)
def test_the_means_are_those_of_the_paper(name, inputs, outputs):
    requests = traces.draw(name, 20_000)
    for found, mean in (
        ([request.input_length for request in requests], inputs),
        ([request.output_length for request in requests], outputs),
    ):
        error = statistics.stdev(found) / math.sqrt(len(found))
        assert abs(statistics.fmean(found) - mean) < 3 * error


def test_the_first_requests_never_change():
    """Stored results and printed numbers depend on them."""
    first = [(request.input_length, request.output_length) for request in traces.draw("sharegpt", 4)]
    assert first == [(270, 70), (39, 342), (26, 229), (108, 116)]


def test_arrivals_at_a_rate_leave_the_lengths_alone():
    requests = traces.draw("alpaca", 4000, seed=1, rate=8.0)
    still = traces.draw("alpaca", 4000, seed=1)
    assert [r.output_length for r in requests] == [r.output_length for r in still]
    arrivals = [request.arrival for request in requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] > 0
    assert arrivals[-1] / 4000 == pytest.approx(1 / 8, rel=3 / math.sqrt(4000))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "nothing"}, "expected one of sharegpt, alpaca, uniform, fixed"),
        ({"number": 0}, "requests=0"),
        ({"number": 2.5}, "requests=2.5"),
        ({"seed": -1}, "seed=-1"),
        ({"rate": 0}, "rate=0"),
        ({"rate": math.nan}, "rate=nan"),
        ({"rate": "1"}, "rate='1'"),
    ],
)
def test_what_cannot_be_drawn(options, message):
    with pytest.raises(InputError, match=message):
        traces.draw(**options)


def test_the_last_token_of_an_output_is_not_stored():
    assert Request(0, 5, 3).most_stored == 7
    assert Request(0, 1, 1).most_stored == 1


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_trace_is_read_as_it_was_written(tmp_path_factory, data):
    requests = data.draw(
        st.lists(
            st.builds(
                lambda moment, inputs, outputs, first: Request(
                    moment / 1000, inputs, outputs, tuple(range(first, first - (-inputs // 512)))
                ),
                st.integers(0, 10**9), st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 10**6),
            ), min_size=1, max_size=6,
        )
    )  # fmt: skip
    lines = [
        {"timestamp": round(1000 * r.arrival), "input_length": r.input_length, "output_length": r.output_length,
         "hash_ids": list(r.hash_ids)}
        for r in requests
    ]  # fmt: skip
    path = write(tmp_path_factory.mktemp("traces") / "trace.jsonl", *lines)
    assert traces.read_trace(path) == requests
    number = data.draw(st.integers(1, len(requests)))
    assert traces.read_trace(str(path), number) == requests[:number]
    packed = path.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert traces.read_trace(packed) == requests


def test_empty_lines_and_other_keys_do_not_matter_and_hashes_may_be_absent(tmp_path):
    path = write(tmp_path / "t", "", LINE | {"session": "x"}, "  ", {k: LINE[k] for k in list(LINE)[:3]})
    assert traces.read_trace(path) == [Request(0.027, 1030, 7, (0, 5, 9)), Request(0.027, 1030, 7)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", 'expected a JSON object with "timestamp", "input_length" and "output_length", and got nonsense'),
        ("[1, 2]", r"expected a JSON object .*, and got \[1, 2\]"),
        ("[" * 200_000, r"expected a JSON object .*, and got \[{40}…$"),
        ("x" * 500, "expected a JSON object .*, and got x{40}…$"),
        ({"input_length": 3, "output_length": 3}, '"timestamp" is missing; expected milliseconds'),
        (LINE | {"timestamp": -1}, '"timestamp" is -1; expected milliseconds, at least 0'),
        (LINE | {"timestamp": "now"}, '"timestamp" is "now"'),
        (LINE | {"timestamp": math.nan}, '"timestamp" is NaN'),
        (LINE | {"input_length": 0}, '"input_length" is 0; expected a whole number of at least 1'),
        (LINE | {"output_length": 1.5}, '"output_length" is 1.5'),
        (LINE | {"output_length": True}, '"output_length" is true'),
        (LINE | {"output_length": None}, '"output_length" is null'),
        (LINE | {"hash_ids": 5}, '"hash_ids" is 5; expected a list of whole numbers'),
        (LINE | {"hash_ids": [0, "a", 2]}, '"hash_ids" is .*; expected a list of whole numbers'),
        (LINE | {"hash_ids": [0, 1]}, '"hash_ids" has 2 ids; expected 3, one for each 512 of 1030 tokens'),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_in_one_line(tmp_path, line, message):
    path = write(tmp_path / "some.jsonl", LINE, line, LINE)
    with pytest.raises(InputError, match=rf"^some.jsonl, line 2: {message}") as caught:
        traces.read_trace(path)
    assert "\n" not in str(caught.value)
    assert traces.read_trace(path, 1) == [
        Request(0.027, 1030, 7, (0, 5, 9))
    ]  # what is not needed is not read


def test_files_that_are_no_traces(tmp_path):
    with pytest.raises(InputError, match="cannot read the trace"):
        traces.read_trace(tmp_path / "absent.jsonl")
    with pytest.raises(InputError, match="cannot read the trace"):
        traces.read_trace(tmp_path)
    with pytest.raises(InputError, match="no requests in it"):
        traces.read_trace(write(tmp_path / "empty", "", ""))
    (tmp_path / "binary").write_bytes(bytes(range(128, 256)))
    with pytest.raises(InputError, match="not a text file of JSON lines"):
        traces.read_trace(tmp_path / "binary")
    packed = gzip.compress(json.dumps(LINE).encode() * 100)
    (tmp_path / "cut.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match="not a text file"):
        traces.read_trace(tmp_path / "cut.gz")
    write(tmp_path / "plain.gz", LINE)
    with pytest.raises(InputError, match="cannot read the trace"):
        traces.read_trace(tmp_path / "plain.gz")
    with pytest.raises(InputError, match="requests=0"):
        traces.read_trace(write(tmp_path / "one", LINE), 0)
