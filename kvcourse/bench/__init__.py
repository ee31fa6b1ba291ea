"""Benchmarks. Those of speed time arms with `harness.compare`; those of capacity serve requests, simulated or on a
model; those of quality train models side by side.

`compare` and `Comparison` are for any timing of your own; `machine` says what the computer can do.
"""

from kvcourse.bench import machine
from kvcourse.bench.harness import Arm, Comparison, compare

# Name on the command line and what it measures. The module has the same name, with "_" for "-".
BENCHMARKS = {
    "cache": "decode step and its KV part on KVCache, next to transformers' DynamicCache and the floor",
    "heads": "decode step and its KV part of one model with many, few and one kv head, and as MLA",
    "mla": "decode attention over latents: our kernel, absorbed and expanded in torch, and the floor",
    "paged": "decode attention over pages: our kernel, a contiguous cache, gathered pages, and the floor",
    "pool": "a block given out or taken back by the block pool, in small pools and in large ones",
    "utilisation": "how much of the memory holds tokens: reserved arrays and pages of 1 to 256, simulated",
    "concurrency": "32 requests on a real model under one memory cap, one array a request and paged",
    "attention-quality": "small models with MHA, GQA, MQA and MLA, trained side by side",
    "uptrain": "a real model converted to MQA and MLA, perplexity before and after some training",
}

__all__ = ["BENCHMARKS", "Arm", "Comparison", "compare", "machine"]
