"""What is free of one long array, for allocators of contiguous memory."""

import bisect


class Holes:
    """The free parts of one long array: first fit, neighbours joined when they are given back."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._holes = [(0, size)]  # (first, size), by first

    @property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """(first, size) of each free part, in order."""
        return tuple(self._holes)

    def take(self, size: int, multiple: int = 1) -> int | None:
        """Take `size` slots at the first free place that is a multiple; that place, or None when there is none."""
        for i, (first, free) in enumerate(self._holes):
            place, last = -(-first // multiple) * multiple, first + free
            if place + size <= last:
                left = [(first, place - first), (place + size, last - place - size)]
                self._holes[i : i + 1] = [hole for hole in left if hole[1]]
                return place
        return None

    def give_back(self, first: int, size: int) -> None:
        """Free a part that `take` gave."""
        i = bisect.bisect(self._holes, (first, 0))
        last = first + size
        joined = slice(i, i)
        if i < len(self._holes) and self._holes[i][0] == last:
            last += self._holes[i][1]
            joined = slice(i, i + 1)
        if i and sum(self._holes[i - 1]) == first:
            first = self._holes[i - 1][0]
            joined = slice(i - 1, joined.stop)
        self._holes[joined] = [(first, last - first)]
