"""Right answers to the exercises of chapter 4 in other words than the course's."""

from learner import Variant

VARIANTS = {
    "ex-4-parallel-samples": [
        Variant(
            "tables of numbered blocks, and a set of them",
            """
full = prompt // block_size
blocks = {("prompt", i) for i in range(full)}
for number, answer in enumerate(answers):
    owner = number if answer else "nobody"
    blocks |= {(owner, p // block_size) for p in range(full * block_size, prompt + answer)}
return len(blocks)
""",
        ),
        Variant(
            "token by token, with reference counts",
            """
references = [len(answers)] * rounded_up(prompt, block_size)
last = len(references) - 1
for answer in answers:
    own = prompt % block_size == 0
    for position in range(prompt, prompt + answer):
        if position % block_size == 0:
            references.append(1)
            own = True
        elif not own:
            if references[last] > 1:
                references[last] -= 1
                references.append(1)
            own = True
return sum(count > 0 for count in references)
""",
            "def rounded_up(n, size):\n    return (n + size - 1) // size",
        ),
        Variant(
            "a sum",
            """
full, rest = divmod(prompt, block_size)
own = [math.ceil((rest + a) / block_size) for a in answers if a]
return full + sum(own) + int(rest > 0 and len(own) < len(answers))
""",
            "import math",
        ),
    ],
    "ex-4-swap-out": [
        Variant(
            "reference counts",
            """
references = Counter(block for table in tables for block in table if block)
victims, blocks = [], []
for i in reversed(range(1, len(tables))):
    if len(blocks) >= need:
        break
    victims.append(i)
    for block in filter(None, tables[i]):
        references[block] -= 1
        if references[block] == 0:
            blocks.append(block)
return (victims, sorted(blocks)) if len(blocks) >= need else None
""",
            "from collections import Counter",
        ),
        Variant(
            "how many stay",
            """
everything = set().union(*tables)
for stay in range(len(tables), 0, -1):
    free = everything - set().union(*tables[:stay]) - {0}
    if len(free) >= need:
        return list(range(len(tables) - 1, stay - 1, -1)), sorted(free)
""",
        ),
        Variant(
            "a list",
            """
if need <= 0:
    return [], []
held, victims, freed = [list(t) for t in tables], [], []
while len(held) > 1:
    gone = held.pop()
    victims.append(len(held))
    for block in gone:
        if block > 0 and block not in freed and all(block not in table for table in held):
            freed.append(block)
    if len(freed) >= need:
        freed.sort()
        return victims, freed
return None
""",
        ),
    ],
    "ex-4-tenant-chain": [
        Variant(
            "bytes of fixed width, sha256, the tenant as a hash of its own",
            """
names, parent = [], bytes(32)
for i in range(len(tokens) // block_size):
    block = tokens[i * block_size : (i + 1) * block_size]
    message = parent + b"".join(t.to_bytes(8, "big") for t in block)
    if (i + 1) * block_size > public:
        message += hashlib.sha256(tenant.encode()).digest()
    parent = hashlib.sha256(message).digest()
    names.append(parent.hex())
return names
""",
            "import hashlib",
        ),
        Variant(
            "the whole beginning each time, as JSON",
            """
def name(end):
    owner = {"public": True} if end <= public else {"tenant": tenant}
    return hashlib.md5(json.dumps([tokens[:end], owner]).encode()).hexdigest()
return [name(end) for end in range(block_size, len(tokens) + 1, block_size)]
""",
            "import hashlib\nimport json",
        ),
        Variant(
            "no hash at all: the contents are their own name",
            """
return [
    f"{tokens[:end]} {tenant!r}" if end > public else str(tokens[:end])
    for end in range(block_size, len(tokens) + 1, block_size)
]
""",
        ),
    ],
    "ex-4-behind-window": [
        Variant(
            "block by block, by its last position",
            """
kept, freed = [], []
for i, block in enumerate(table):
    last = (i + 1) * block_size - 1
    seen = last > num_stored - window
    kept.append(block if seen else 0)
    if block and not seen:
        freed.append(block)
return kept, freed
""",
        ),
        Variant(
            "in the table itself, until a block is visible",
            """
freed = []
for i in range(len(table)):
    positions = range(i * block_size, (i + 1) * block_size)
    if any(num_stored - p < window for p in positions):
        break
    if table[i] != 0:
        freed.append(table[i])
    table[i] = 0
return table, freed
""",
        ),
        Variant(
            "both at once",
            """
oldest = num_stored + 1 - window
behind = 0 if oldest < 0 else oldest // block_size
pairs = [(b, 0) if i >= behind else (0, b) for i, b in enumerate(table)]
return [b for b, _ in pairs], [b for _, b in pairs if b]
""",
        ),
    ],
}
