"""What 32 requests at once take of real models: arithmetic on their configs and on the simulated server.

Bytes a token come from the config (`kvcourse.memory`), tokens a running request from `bench.utilisation`: the memory
divided by the requests that run at once in it, so that waste of every kind is counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvcourse import memory
from kvcourse.bench import utilisation
from kvcourse.bench.allocators import MAX_LENGTH, ORACLE, POWER_OF_TWO, Paged
from kvcourse.bench.traces import Request
from kvcourse.units import parse_bytes

# Model, GPU memory, and the longest context that the model allows (max_position_embeddings).
DEPLOYMENTS = (
    ("llama-3-8b", "24GB", 8192),
    ("llama-3-8b", "80GB", 8192),
    ("llama-3-70b", "160GB", 8192),
    ("llama-3-70b", "320GB", 8192),
)
POLICIES = (MAX_LENGTH, POWER_OF_TWO, ORACLE, Paged(16))


@dataclass(frozen=True)
class Deployment:
    """One model on GPUs with that much memory, in bf16, under one policy. Sizes in bytes.

    room_bytes: what weights and a reserve of 10 % leave for the cache. request_bytes: what a running request takes of
    it on average, what is free but of no use included. at_once: requests that run at once.
    """

    model: str
    gpu_bytes: int
    room_bytes: int
    policy: str
    request_bytes: int
    at_once: int

    def bytes_of(self, requests: int) -> int:
        """Memory for that many requests at once."""
        return requests * self.request_bytes


def deploy(
    requests: Sequence[Request], deployments: Sequence[tuple[str, str, int]] = DEPLOYMENTS
) -> tuple[Deployment, ...]:
    """Every deployment under every policy, for requests of these lengths. Errors: as in `utilisation.run`."""
    rows = []
    simulated = {
        length: utilisation.run(requests, POLICIES, 8 * length, length, progress=False)
        for length in dict.fromkeys(length for _, _, length in deployments)
    }
    for model, gpu, length in deployments:
        room = memory.fits(model, gpu, length).room_bytes
        for arm in simulated[length].arms:
            tokens = simulated[length].capacity_tokens / arm.concurrency
            size = round(tokens * memory.bytes_per_token(model))
            rows.append(Deployment(model, parse_bytes(gpu), room, arm.name, size, room // size))
    return tuple(rows)
