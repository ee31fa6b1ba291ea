"""The storage that a plan names."""

from kvcourse import codecs
from kvcourse.attention.families import layout_of
from kvcourse.config import ModelConfig
from kvcourse.errors import InputError
from kvcourse.plan import Plan
from kvcourse.storage.base import Storage
from kvcourse.storage.contiguous import ContiguousStorage
from kvcourse.storage.paged import PagedStorage
from kvcourse.storage.paged_memory import PagedMemory

FIRST_BLOCKS = 32  # of a pool that grows on demand


def make_storage(
    config: ModelConfig, plan: Plan, batch_size: int, memory: PagedMemory | None = None
) -> Storage:
    """The storage that a plan names, without tokens.

    Errors: InputError for a memory that does not fit the model or the plan.
    """
    if plan.storage == "contiguous":
        if memory is not None:
            raise InputError(
                "memory= with storage='contiguous': only Plan(storage='paged') keeps its tokens in a memory"
            )
        dtype = codecs.get(plan.codec).dtype
        return ContiguousStorage(layout_of(config), batch_size, plan.block_size, plan.capacity, dtype)
    if memory is None:
        memory = PagedMemory(
            config,
            plan.num_blocks or FIRST_BLOCKS,
            plan.block_size,
            dtype=None,
            codec=codecs.get(plan.codec),
            grows=plan.num_blocks is None,
        )
    elif not isinstance(memory, PagedMemory):
        raise InputError(f"memory is a {type(memory).__name__}: expected a kvcourse.storage.PagedMemory")
    elif (memory.layout, memory.block_size) != (layout_of(config), plan.block_size):
        raise InputError(
            f"this memory was made for another model or block size ({memory.block_size} tokens): make it with the "
            f"config of the model and block_size={plan.block_size}"
        )
    elif memory.codec.format.name != plan.codec or plan.num_blocks not in (None, memory.num_blocks):
        raise InputError(
            f"plan with codec={plan.codec!r} and num_blocks={plan.num_blocks} for a memory with codec="
            f"{memory.codec.format.name!r} and {memory.num_blocks} blocks: leave the plan out, or make both alike"
        )
    return PagedStorage.empty(memory, batch_size)
