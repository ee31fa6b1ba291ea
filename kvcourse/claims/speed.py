"""Row 11 of the ledger: how much faster decoding is with fewer kv heads. Read from a stored run."""

from typing import Any

from kvcourse import results
from kvcourse.claims.claim import Claim
from kvcourse.claims.recorded import origin


def _faster() -> dict[str, Any]:
    """Time with a kv head for each query head ÷ time with a third of them, side by side in one run."""
    run = results.read("heads")
    cases = {(case["batch"], case["context"]): case["models"]["GQA"] for case in run["cases"]}
    parts = [models["kv_speedup"] for models in cases.values()]
    return {
        **{
            f"a step with 9 kv heads ÷ with 3, batch {batch} at {context:,} tokens": round(
                gqa["step_speedup"], 2
            )
            for (batch, context), gqa in cases.items()
        },
        "storing and attending alone, least": round(min(parts), 2),
        "storing and attending alone, most": round(max(parts), 2),
        **origin(run, "decoding"),
    }


ROWS: tuple[Claim, ...] = (
    Claim(
        11,
        said="GQA is 1.3 to 1.5 times as fast.",
        verdict="no single number",
        finding="It depends on how much of a step is cache, that is on batch and context. SmolLM2-135M with 3 kv "
        "heads instead of 9 decodes 1.16 times as fast for 1 request of 512 tokens, and 1.61 times for 4 of 4,096. "
        "Storing and attending alone gain 1.29 to 2.07 times, less than the factor of 3 in bytes: on a CPU core the "
        "arithmetic, which stays the same, takes time too. The GQA paper has 5.4 times for a large model on TPUs.",
        source="GQA, arXiv 2305.13245, Table 1: T5-XXL 1.51 s a sample (MHA), 0.28 s (GQA-8), 5.4 times; Llama 2, "
        "arXiv 2307.09288, Fig. 24: the gain comes with the batch, none when it is small",
        status="source seen; measured",
        measure=_faster,
        command="kvcourse bench heads",
        chapter=2,
    ),
)
