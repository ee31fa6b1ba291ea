"""Requests to serve: drawn from length distributions, or read from a trace file.

Lengths matter, not words: what memory a request takes follows from its tokens of input and of output alone.
"""

import gzip
import json
import math
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcourse.counts import is_number, one_line, read_count
from kvcourse.errors import InputError

HASHED_TOKENS = 512  # tokens of input that one hash id of a trace stands for
MODEL_LENGTH = 2048  # tokens of input and output together that the built-in distributions stay within
MOST_REQUESTS = 10_000_000


@dataclass(frozen=True)
class Request:
    """One request. arrival: seconds after the start. Lengths in tokens, at least 1.

    hash_ids: one for each 512 tokens of input, the last ones included; equal ids stand for equal tokens with equal
    tokens before them. Empty when nothing is known.
    """

    arrival: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()

    @property
    def most_stored(self) -> int:
        """Tokens in its cache at the end: the last token of the output is never fed back."""
        return self.input_length + self.output_length - 1


@dataclass(frozen=True)
class Distribution:
    """Lengths of input and output, drawn apart from each other. source: where the numbers come from."""

    name: str
    source: str
    draw_input: Callable[[random.Random], int]
    draw_output: Callable[[random.Random], int]


def _log_normal(median: float, sigma: float) -> Callable[[random.Random], int]:
    return lambda chance: max(1, round(median * math.exp(chance.gauss(0.0, sigma))))


def _constant(tokens: int) -> Callable[[random.Random], int]:
    return lambda chance: tokens


def _between(least: int, most: int) -> Callable[[random.Random], int]:
    return lambda chance: chance.randint(least, most)


# The vLLM paper (arXiv 2309.06180, Fig. 11) prints the means of its two data sets and draws them, skewed, without
# formulas. Log-normal is our choice, and so are the spreads; the medians are such that the means come out, once
# pairs above 2,048 tokens are drawn again. ShareGPT's spread of outputs makes a running request store 459 tokens on
# average: what 20.4 of the 91.1 % that Orca (Max) has reserved are of 2,048 (Fig. 2).
DISTRIBUTIONS = {
    distribution.name: distribution
    for distribution in (
        Distribution(
            "sharegpt",
            "log-normal, means of ShareGPT: 161 tokens in, 338 out (vLLM paper, Fig. 11)",
            _log_normal(87.1, 1.2),
            _log_normal(244.8, 0.9),
        ),
        Distribution(
            "alpaca",
            "log-normal, means of Alpaca: 19 tokens in, 58 out (vLLM paper, Fig. 11)",
            _log_normal(17.04, 0.5),
            _log_normal(35.54, 1.0),
        ),
        Distribution("uniform", "1 to 1,024 tokens in and out, evenly", _between(1, 1024), _between(1, 1024)),
        Distribution("fixed", "512 tokens in, 512 out", _constant(512), _constant(512)),
    )
}


def draw(
    name: str = "sharegpt", number: int = 2000, seed: int = 0, rate: float | None = None
) -> list[Request]:
    """`number` requests with lengths of a distribution, the same ones for the same seed.

    rate: requests a second, at random moments (Poisson); None: all are there at the start. The lengths do not depend
    on it. Input and output together have at most 2,048 tokens: longer pairs are drawn again.

    Errors: InputError for an unknown name, a number or seed that is none, or a rate that is not positive.
    """
    if name not in DISTRIBUTIONS:
        raise InputError(f"distribution {name!r}: expected one of {', '.join(DISTRIBUTIONS)}")
    number = read_count("requests", number, most=MOST_REQUESTS)
    if rate is not None and (not is_number(rate) or rate <= 0):
        raise InputError(f"rate={one_line(rate)}: expected a positive number of requests a second")
    seed = read_count("seed", seed, least=0)
    chance, moments = random.Random(seed), random.Random(seed)
    requests: list[Request] = []
    arrival = 0.0
    while len(requests) < number:
        lengths = DISTRIBUTIONS[name].draw_input(chance), DISTRIBUTIONS[name].draw_output(chance)
        if sum(lengths) > MODEL_LENGTH:
            continue
        arrival += 0.0 if rate is None else moments.expovariate(rate)
        requests.append(Request(arrival, *lengths))
    return requests


def read_trace(path: str | Path, number: int | None = None) -> list[Request]:
    """The requests of a trace file in the format of Mooncake's traces (FAST'25), or its first `number`.

    A line is a JSON object: "timestamp" (milliseconds), "input_length" and "output_length" (tokens), and optionally
    "hash_ids", one id for each 512 tokens of the input. A file whose name ends in .gz is unpacked on the way.

    Errors: InputError, with file and line, for what cannot be read; or for a file without requests.
    """
    path = Path(path)
    if number is not None:
        number = read_count("requests", number, most=MOST_REQUESTS)
    unpack = gzip.open if path.suffix == ".gz" else open
    requests: list[Request] = []
    try:
        with unpack(path, "rt", encoding="utf-8") as lines:
            for count, line in enumerate(lines, 1):
                if len(requests) == number:
                    break
                if line.strip():
                    requests.append(_read_line(line, f"{path.name}, line {count}"))
    except OSError as error:
        raise InputError(
            f"{path}: cannot read the trace ({error.strerror or error}); check the path"
        ) from None
    except (UnicodeDecodeError, EOFError, zlib.error):
        raise InputError(
            f"{path}: not a text file of JSON lines, plain or gzip (.gz); check the file"
        ) from None
    if not requests:
        raise InputError(f"{path}: no requests in it; expected a JSON object a line")
    return requests


def _read_line(line: str, where: str) -> Request:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise InputError(
            f'{where}: expected a JSON object with "timestamp", "input_length" and "output_length", and got '
            f"{_shortened(line.strip())}"
        )
    arrival = entry.get("timestamp")
    if not is_number(arrival) or arrival < 0:
        raise InputError(
            f'{where}: "timestamp" is {_shown(entry, "timestamp")}; expected milliseconds, at least 0'
        )
    for name in ("input_length", "output_length"):
        tokens = entry.get(name)
        if not _is_whole(tokens) or tokens < 1:
            raise InputError(
                f'{where}: "{name}" is {_shown(entry, name)}; expected a whole number of at least 1'
            )
    ids = entry.get("hash_ids", [])
    if not isinstance(ids, list) or not all(map(_is_whole, ids)):
        raise InputError(
            f'{where}: "hash_ids" is {_shown(entry, "hash_ids")}; expected a list of whole numbers'
        )
    blocks = -(-entry["input_length"] // HASHED_TOKENS)
    if ids and len(ids) != blocks:
        raise InputError(
            f'{where}: "hash_ids" has {len(ids)} ids; expected {blocks}, one for each {HASHED_TOKENS} of '
            f"{entry['input_length']} tokens"
        )
    return Request(arrival / 1000, entry["input_length"], entry["output_length"], tuple(ids))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(entry: dict[str, Any], name: str) -> str:
    return _shortened(json.dumps(entry[name])) if name in entry else "missing"


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"
