"""A plan: one choice on each of the four axes."""

from dataclasses import dataclass

from kvcourse.codecs.formats import get_format
from kvcourse.counts import read_count
from kvcourse.errors import InputError

# Every name that a plan knows, and whether this release can run it (memory.py sizes them all).
ATTENTION = {"auto": True}
STORAGE = {"contiguous": True, "paged": True}
SHARING = {None: True, "radix": False}
EVICTION = {None: True, "streaming": False, "h2o": False, "scissorhands": False}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a KV cache does, apart from any model.

    attention: "auto", what the model stores.
    storage: "contiguous" (one array a layer) or "paged" (blocks of a pool).
    sharing: None, or "radix" (common prefixes stored once).
    codec: how numbers are written: "auto" (full precision, in the dtype that the model computes in), "fp64",
        "fp32", "bf16", "fp16", or a quantised format of `kvcourse.codecs`.
    eviction: None (all tokens stay), "streaming", "h2o" or "scissorhands".
    block_size: tokens in the smallest unit of storage. A contiguous array starts with one block and doubles;
        a sliding window keeps one block more than it needs, so that the last block can be rolled back.
    capacity: slots to allocate per sequence at once (contiguous storage only); None grows on demand.
    num_blocks: blocks of the pool, the null block included (paged storage only); None grows on demand.

    Errors: InputError for a name that no release knows. A name that this release can size but not run is
    refused by KVCache.
    """

    attention: str = "auto"
    storage: str = "contiguous"
    sharing: str | None = None
    codec: str = "auto"
    eviction: str | None = None
    block_size: int = 16
    capacity: int | None = None
    num_blocks: int | None = None

    def __post_init__(self) -> None:
        for axis, known in (
            ("attention", ATTENTION), ("storage", STORAGE), ("sharing", SHARING), ("eviction", EVICTION),
        ):  # fmt: skip
            value = getattr(self, axis)
            if not isinstance(value, str | None) or value not in known:
                raise InputError(f"{axis}={value!r}: expected one of {', '.join(map(repr, known))}")
        get_format(self.codec)  # refuses a name that nobody knows
        for name, least in (("block_size", 1), ("capacity", 1), ("num_blocks", 2)):
            value = getattr(self, name)
            if name == "block_size" or value is not None:
                object.__setattr__(self, name, read_count(name, value, least))
        if self.capacity is not None and self.storage != "contiguous":
            raise InputError(
                f"capacity={self.capacity} with storage={self.storage!r}: only contiguous storage has a "
                "capacity per sequence; leave it out"
            )
        if self.num_blocks is not None and self.storage != "paged":
            raise InputError(
                f"num_blocks={self.num_blocks} with storage={self.storage!r}: only paged storage has a pool of "
                "blocks; leave it out, or give capacity"
            )

    def require_runnable(self) -> None:
        """Raise InputError when this release can size the plan but has no code to run it."""
        for axis, known in (
            ("attention", ATTENTION), ("storage", STORAGE), ("sharing", SHARING), ("eviction", EVICTION),
        ):  # fmt: skip
            value = getattr(self, axis)
            if not known[value]:
                ready = ", ".join(repr(name) for name, runs in known.items() if runs)
                raise InputError(f"{axis}={value!r} cannot be run by this release yet; it runs: {ready}")


def plan_or_default(plan: Plan | None) -> Plan:
    """The plan, or Plan() for None. Errors: InputError for anything else."""
    if plan is None:
        return Plan()
    if not isinstance(plan, Plan):
        raise InputError(f"plan {plan!r}: expected a kvcourse.Plan, or None for the default")
    return plan
