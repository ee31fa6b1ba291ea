"""A server that is slow and simple: one token and one step at a time."""

from collections import Counter

BUDDY = ("power of two, buddy", "oracle, buddy")
POWERS = {2**i for i in range(12)}


class OneByOne:
    """The same server, one token and one step at a time, over a list that says who owns each slot."""

    def __init__(self, requests, kind, capacity, max_length, block_size, watermark, whole, step_seconds):
        self.requests, self.kind, self.max_length = requests, kind, max_length
        self.size = block_size if kind == "paged" else 1
        self.slots = [None] * (capacity // self.size)
        self.capacity, self.whole = capacity, whole
        self.spare = int(watermark * len(self.slots))
        self.seconds = step_seconds
        self.done = [0] * len(requests)
        self.counts = {"total": Counter(), "waiting": Counter()}
        self.idle = self.preemptions = self.recomputed = 0

    def stored(self, i):
        return self.requests[i].input_length + self.done[i]

    def end(self, i):
        return self.requests[i].input_length + self.requests[i].output_length - 1

    def reserve(self, i):
        request, power = self.requests[i], 1
        while power < request.output_length:
            power *= 2
        size = {
            "max length": self.max_length,
            "oracle": self.end(i),
            "power of two": request.input_length + power,
        }
        size = min(self.max_length, size[self.kind.removesuffix(", buddy")])
        while self.kind in BUDDY and size not in POWERS:
            size += 1
        return size

    def admit(self, i, running):
        if self.kind != "paged":
            size = self.reserve(i)
            for first in range(0, len(self.slots) - size + 1, size if self.kind in BUDDY else 1):
                if not any(self.slots[first : first + size]):
                    self.slots[first : first + size] = [f"{i}"] * size
                    return True
            return False
        free = [s for s, owner in enumerate(self.slots) if owner is None]
        needed = -(-self.stored(i) // self.size)
        if self.whole:
            fits = sum(-(-self.end(j) // self.size) for j in [*running, i]) <= len(self.slots)
        else:
            fits = needed + (self.spare if running else 0) <= len(free)
        if fits:
            for s in free[:needed]:
                self.slots[s] = f"{i}"
        return fits

    def release(self, i):
        self.slots = [None if owner == f"{i}" else owner for owner in self.slots]

    def grow(self, running):
        """A slot for each one that lacks it, or whom nothing is left for."""
        if self.kind != "paged":
            return True
        lacking = [i for i in running if self.slots.count(f"{i}") * self.size < self.stored(i)]
        if len(lacking) > self.slots.count(None):
            return False
        for i in lacking:
            self.slots[self.slots.index(None)] = f"{i}"
        return True

    def run(self):
        arrivals = {i: 0 if self.seconds is None else -(-round(r.arrival * 1000) // round(self.seconds * 1000))
                    for i, r in enumerate(self.requests)}  # fmt: skip
        pending = sorted(arrivals, key=arrivals.get)
        waiting, running, clock, preempted = [], [], 0, False
        while pending or waiting or running:
            while pending and arrivals[pending[0]] <= clock:
                waiting.append(pending.pop(0))
            while not preempted and waiting and self.admit(waiting[0], running):
                running.append(waiting.pop(0))
            clock += 1
            if not running:
                self.idle += 1
                continue
            self.count(running, waiting)
            for i in list(running):
                self.done[i] += 1
                if self.done[i] == self.requests[i].output_length:
                    running.remove(i)
                    self.release(i)
            preempted = False
            while not self.grow(running):
                preempted = True
                waiting.insert(0, running.pop())
                self.preemptions += 1
                self.recomputed += self.stored(waiting[0]) - 1
                self.release(waiting[0])
        return self

    def count(self, running, waiting):
        held = {i: self.slots.count(f"{i}") * self.size for i in running}
        reserved = sum(held.values())
        new = {
            "steps": 1,
            "running": len(running),
            "stored": sum(map(self.stored, running)),
            "reserved": reserved,
            "never": sum(max(0, size - self.end(i)) for i, size in held.items()),
            "no_hole": (self.capacity - reserved) * bool(waiting),
        }
        for name in ("total", "waiting")[: 1 + bool(waiting)]:
            self.counts[name].update(new)
