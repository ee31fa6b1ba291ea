"""The explorer of a pool of blocks: a script of requests, step by step or played."""

from collections.abc import Sequence

from kvcourse.errors import InputError
from kvcourse.figures import paging, style
from kvcourse.figures.explorers import Explorer, bundle
from kvcourse.figures.pool_replay import STORY, Frame, Operation, replay

MOST_BLOCKS, MOST_SLOTS, MOST_STEPS = 48, 16, 120


class PoolExplorer(Explorer):
    """Requests on a pool of blocks: who holds which block, how full each is, the block tables, what is free.

    script: operations of `pool_replay`, by default STORY; `pool_replay.random_script(seed)` makes others. It runs on
    a real BlockPool, PrefixIndex and BlockTables before the panel is shown; the panel only draws what was read there.
    num_blocks: of the pool, the null block among them. block_size: tokens in a block. seed: of the tokens.
    step: where the slider starts.
    Errors: InputError for a script that cannot be run or is longer than 120 steps, more than 48 blocks or 16 slots.
    """

    _esm = bundle("pool_explorer.mjs")

    def __init__(
        self,
        script: Sequence[Operation] = STORY,
        num_blocks: int = 24,
        block_size: int = 4,
        seed: int = 0,
        step: int = 0,
    ):
        if num_blocks not in range(2, MOST_BLOCKS + 1) or block_size not in range(1, MOST_SLOTS + 1):
            found = f"num_blocks={num_blocks!r}, block_size={block_size!r}"
            raise InputError(f"{found}: expected 2 to {MOST_BLOCKS} blocks of 1 to {MOST_SLOTS} tokens")
        self.frames = replay(script, num_blocks, block_size, seed)
        steps = len(self.frames) - 1
        if not 1 <= steps <= MOST_STEPS or step not in range(steps + 1):
            found = f"a script of {steps} steps, shown from step {step!r}"
            raise InputError(f"{found}: expected 1 to {MOST_STEPS} steps, and one of them or 0")
        names = {name: None for frame in self.frames for name in frame.state.tables}
        colors = paging.sequence_colors(names)
        most = max(self.frames, key=lambda frame: frame.state.counts.used).state
        text = (
            f"Pool explorer (interactive where JavaScript runs). {num_blocks - 1} blocks of {block_size} tokens, "
            f"{steps} steps. Step {step}: {self.frames[step].said} At most {most.counts.used} blocks are in use at "
            f"once, with tokens in {most.utilisation:.0%} of their slots; after the last step "
            f"{self.frames[-1].state.counts.cached} free blocks can still be found by their prefix."
        )
        data = {
            "block_size": block_size,
            "colors": {name: [color, style.text_on(color)] for name, color in colors.items()},
            "frames": [frame_data(frame) for frame in self.frames],
        }
        super().__init__(text, data=data, start={"step": step})


def frame_data(frame: Frame) -> dict:
    """What the panel draws of a frame. blocks: of each [sequences that hold it, tokens in it, is it cached]."""
    state = frame.state
    used, cached, clean = state.counts
    return {
        "said": frame.said,
        "blocks": [
            [list(state.owners.get(block, ())), state.filled[block], block in state.cached]
            for block in range(state.num_blocks)
        ],
        "touched": list(frame.touched),
        "tables": [[name, list(table), state.lengths[name]] for name, table in state.tables.items()],
        "used": used,
        "cached": cached,
        "clean": clean,
        "stored": state.stored,
        "utilisation": state.utilisation,
    }
