"""Benchmarks. Each is a module of this package that times arms with `harness.compare`.

`compare` and `Comparison` are for any timing of your own; `machine` says what the computer can do.
"""

from kvcourse.bench import machine
from kvcourse.bench.harness import Arm, Comparison, compare

# Name on the command line and what it measures. The module has the same name.
BENCHMARKS = {
    "cache": "decode step and its KV part on KVCache, next to transformers' DynamicCache and the floor",
}

__all__ = ["BENCHMARKS", "Arm", "Comparison", "compare", "machine"]
