"""What rows of the ledger read from stored results (`kvcourse.results`)."""

import math
import statistics
from typing import Any

from kvcourse import results


def origin(result: dict[str, Any], what: str) -> dict[str, str]:
    """How a result was measured, as one line of a row: the command, the machine and the day."""
    about = result["machine"]
    machine = f"{about['cpu']}, {about['cores']} cores" + (f", {about['gpu']}" if about["gpu"] else "")
    return {f"{what}: measured by": f"`{result['command']}`; {machine}; {result['date'][:10]}"}


def from_scratch(name: str) -> dict[str, Any]:
    """Held-out loss of small models of equal size, trained on the same text: MHA, the arm `name`, how far apart.

    Arms are compared seed by seed, since a seed moves all of them together.
    """
    quality = results.read("attention_quality")
    arms = {arm["name"]: arm for arm in quality["arms"]}
    mha, other = arms["MHA"]["loss"], arms[name]["loss"]
    above = [100 * (b / a - 1) for a, b in zip(mha, other, strict=True)]  # %, one a seed
    return {
        f"trained from the start, {quality['steps']} steps: parameters": arms["MHA"]["parameters"],
        "MHA, nats per byte": round(statistics.fmean(mha), 3),
        f"{name}, nats per byte": round(statistics.fmean(other), 3),
        f"{name} above MHA by %": round(statistics.fmean(above), 1),
        "standard error of that": round(statistics.stdev(above) / math.sqrt(len(above)), 1),
        "seed by seed": ", ".join(f"{value:+.1f}".replace("-", "−") for value in above),
        **origin(quality, "training from the start"),
    }
