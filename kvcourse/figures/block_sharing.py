"""Drawings of what blocks share: two tables that name one block, and the hashes by which a block is found again."""

from kvcourse.errors import InputError
from kvcourse.figures import style
from kvcourse.figures.shapes import arrow, label, rectangle
from kvcourse.figures.style import styled
from kvcourse.storage.block_pool import BlockPool
from kvcourse.storage.block_table import BlockTable
from kvcourse.storage.prefix_index import PrefixIndex

POOL = 9  # blocks of the drawn pool, the null block among them
WIDE = 1.32  # inches of a block
LINES = {"A": (style.BLUE, "-"), "B": (style.ORANGE, "--")}
CHAINS = (
    ("A prompt of tenant a", (17, 4, 92, 8, 5, 61, 3, 3, 40, 2, 7, 11), (("tenant", b"a"),)),
    (
        "Tenant a, one token of the second block changed",
        (17, 4, 92, 8, 5, 60, 3, 3, 40, 2, 7, 11),
        (("tenant", b"a"),),
    ),
    (
        "Tenant b, the tokens of the first prompt",
        (17, 4, 92, 8, 5, 61, 3, 3, 40, 2, 7, 11),
        (("tenant", b"b"),),
    ),
)


@styled
def block_table(
    prompt=("The", "cat", "sat", "on", "the", "mat"),
    first=("and", "ran", "off"),
    second=("but", "fell"),
    block_size=4,
):
    """Two sequences that were forked after a prompt: their blocks, their tables, and where these lie in the pool.

    prompt, first, second: short words, one a token; what A and B write after the fork, B before A. The tables are
    `kvcourse.storage.BlockTable`, which take blocks and say what must be copied. block_size: 2 to 4.
    Errors: InputError for words of more than four letters, an empty text, or more than four blocks a sequence.
    """
    words = [*prompt, *first, *second]
    blocks = -(-(len(prompt) + max(len(first), len(second))) // block_size) if block_size in (2, 3, 4) else 9
    if blocks > 4 or not prompt or not first or not second or max(map(len, words)) > 4:
        found = f"{words} in blocks of {block_size}"
        raise InputError(f"{found}: expected words of at most four letters in one to four blocks of 2 to 4")
    contents, tables = {}, {"A": BlockTable(_scattered_pool(block_size))}
    _write(tables["A"], prompt, contents)
    tables["B"] = tables["A"].fork()
    copies = _write(tables["B"], second, contents) + _write(tables["A"], first, contents)
    fig, ax = style.canvas(height=0.3 * POOL + 1.1)
    top = 0.3 * POOL + 0.94
    for x, text in ((0.1, "in order"), (1.72, "table"), (3.0, "blocks of the pool")):
        label(ax, x, top, text, bold=True)
    middles = {block: top - 0.34 - 0.3 * block for block in range(POOL)}
    _draw_pool(ax, tables, contents, middles)
    y = top - 0.34
    for name, table in tables.items():
        color, dashes = LINES[name]
        label(ax, 0.1, y, f"sequence {name}: {table.num_stored} tokens")
        for place, block in enumerate(table.blocks):
            y -= 0.3
            held = contents[block][: max(0, table.num_stored - place * block_size)]
            label(ax, 0.1, y, str(place), style.MUTED)
            _words(ax, 0.26, y, held, block_size, color)
            rectangle(ax, 1.72, y - 0.12, 0.34, 0.24, style.PAPER, edge=style.INK)
            label(ax, 1.89, y, str(block), bold=True, ha="center")
            ax.plot([2.06, 2.72], [y, middles[block]], color=color, linestyle=dashes, linewidth=1.5)
        y -= 0.44
    text = "The prompt ends with a block: nothing had to be copied."
    for source, copy, tokens in copies:
        places = [middles[source], middles[copy]]
        ax.plot([4.34, 4.64, 4.64], [places[0], *places], color=style.ALERT, linewidth=1.5)
        arrow(ax, (4.64, places[1]), (4.36, places[1]), style.ALERT)
        text = (
            f"B was to write into block {source}, which A holds too:\nwhat is shared in it ({tokens} tokens) "
        )
        text += f"was copied to block {copy}."
    label(ax, 0.1, 0.24, text, style.ALERT if copies else style.INK)
    label(ax, 0.1, 0.56, "×2: both tables name the block; it has two references.", style.MUTED)
    return fig


def _draw_pool(ax, tables, contents, middles):
    """The blocks of the pool, one under another: what lies in them, and how many tables name them."""
    for block, middle in middles.items():
        label(ax, 2.94, middle, str(block), style.MUTED, ha="right")
        owners = [name for name, table in tables.items() if block in table.blocks]
        pool = tables["A"].pool
        if owners:
            color = LINES[owners[0]][0] if len(owners) == 1 else style.GREEN
            _words(ax, 3.0, middle, contents[block], pool.block_size, color)
        else:
            free = block and not pool.references(block)
            rectangle(ax, 3.0, middle - 0.12, WIDE, 0.24, style.PAPER if free else style.PALE,
                      linestyle="--" if free else "-")  # fmt: skip
            text = "free" if free else "of others" if block else "null block"
            label(ax, 3.0 + WIDE / 2, middle, text, style.MUTED, ha="center")
        if len(owners) > 1:
            label(ax, 4.37, middle, f"×{len(owners)}", bold=True)


def _words(ax, x, middle, words, block_size, color):
    """A block with a word in each slot."""
    wide = WIDE / block_size
    for slot in range(block_size):
        word = words[slot] if slot < len(words) else ""
        look = (color, style.PAPER) if word else (style.PAPER, style.MUTED)
        rectangle(ax, x + slot * wide, middle - 0.12, wide, 0.24, look[0], edge=look[1])
        if word:
            label(ax, x + (slot + 0.5) * wide, middle, word, style.text_on(color), ha="center")


def _scattered_pool(block_size):
    """A pool of 8 blocks that others hold, six of which were given back in no order."""
    pool = BlockPool(POOL, block_size)
    pool.allocate(POOL - 1)
    for block in (8, 2, 5, 6, 1, 4):
        pool.free([block])
    return pool


def _write(table, words, contents):
    """Writes tokens one by one. (source, copy, tokens) of each block that was copied before."""
    copies = []
    for word in words:
        slot = table.num_stored % table.pool.block_size
        for source, copy in table.reserve(1):
            contents[copy] = contents[source][:slot]
            copies.append((source, copy, slot))
        contents.setdefault(table.blocks[table.num_stored // table.pool.block_size], []).append(word)
        table.commit(1)
    return copies


@styled
def hash_chain(chains=CHAINS, block_size=4, seed=b"kvcourse"):
    """Chains of block hashes, one under another: each block's from its parent's, its tokens and its extra keys.

    chains: (title, tokens, extra keys), one to four of them, each of one to three full blocks. Hashes that the first
    chain has at the same place are filled, the others hatched. seed: of the root; the hashes are those of
    `kvcourse.storage.PrefixIndex`, of which the first 8 of 32 hexadecimal digits are written.
    Errors: InputError for other numbers of chains or blocks.
    """
    chains, index = list(chains), PrefixIndex(BlockPool(2, block_size), seed=seed)
    hashes = [
        tuple(index.chain(tokens, keys)[i] for i in range(len(tokens) // block_size))
        for _, tokens, keys in chains
    ]
    if not 1 <= len(chains) <= 4 or not all(1 <= len(found) <= 3 for found in hashes) or block_size > 4:
        found = f"{len(chains)} chains of {[len(found) for found in hashes]} blocks of {block_size}"
        raise InputError(f"{found}: expected one to four chains of one to three blocks, of at most 4 tokens")
    fig, ax = style.canvas(height=1.3 * len(chains) + 0.5)
    for row, ((title, tokens, keys), found) in enumerate(zip(chains, hashes, strict=True)):
        top = 1.3 * (len(chains) - row) + 0.44
        label(ax, 0.1, top - 0.12, title, bold=True)
        _chip(ax, 0.1, top - 1.06, 0.44, "root", True)
        for i, digest in enumerate(found):
            x = 0.74 + 1.36 * i
            rectangle(ax, x, top - 1.1, 1.16, 0.84, style.PAPER, edge=style.INK)
            written = " ".join(map(str, tokens[i * block_size : (i + 1) * block_size]))
            label(ax, x + 0.58, top - 0.4, written, ha="center")
            extras = ", ".join(f"{kind}: {value.decode(errors='replace')}" for kind, value, *_ in keys)
            label(ax, x + 0.58, top - 0.63, extras or "no extra keys", style.MUTED, ha="center")
            same = i < len(hashes[0]) and digest == hashes[0][i]
            _chip(ax, x + 0.04, top - 1.06, 1.08, digest.hex()[:8] + "…", same)
            arrow(ax, (x - (0.2 if i == 0 else 0.24), top - 0.94), (x + 0.04, top - 0.94), style.INK)
    _chip(ax, 0.1, 0.14, 0.44, "", True)
    label(ax, 0.62, 0.26, "hash as in the first chain")
    _chip(ax, 2.74, 0.14, 0.44, "", False)
    label(ax, 3.26, 0.26, "another hash")
    return fig


def _chip(ax, x, y, width, text, same):
    """A hash, filled where the first chain has it too."""
    color = style.BLUE if same else style.ORANGE
    rectangle(
        ax,
        x,
        y,
        width,
        0.24,
        color,
        edge=color if same else style.PAPER,
        hatch=None if same else "///",
        linewidth=0,
    )
    ground = {"facecolor": color, "linewidth": 0, "pad": 0.8}
    if text:
        ax.text(x + width / 2, y + 0.12, text, color=style.text_on(color), fontsize=style.SMALL_PT, ha="center",
                va="center", bbox=ground)  # fmt: skip
