"""Which process of xdist runs which tests."""

from collections.abc import Mapping

import pytest
from xdist.scheduler import LoadScopeScheduling


class Scheduling(LoadScopeScheduling):
    """Tests of one group (an exercise of a submission) run in one process, in order; groups go out in order.

    A worker that dies, from lack of memory say, costs the test that it ran. xdist's own scheduler (3.8) gives that
    test to the next worker, which dies too; it fails if a second worker is replaced before the first substitute has
    collected; and it waits for ever for a substitute with one test, since a worker starts a test when it knows the
    next one or that there is none.
    """

    def __init__(self, config: pytest.Config, log, groups: Mapping[str, str]) -> None:
        super().__init__(config, log)
        self.groups = groups

    def _split_scope(self, nodeid: str) -> str:
        return self.groups[nodeid]

    def remove_node(self, node) -> str | None:
        """Give to others what a worker has not done; returns the test that it died in, which is not run again."""
        work = self.assigned_work[node]
        units = [(unit, test) for unit in work.values() for test, done in unit.items() if not done]
        if not units:
            return super().remove_node(node)
        unit, died_in = units[0]
        unit[died_in] = True
        super().remove_node(node)
        return died_in

    def _reschedule(self, node) -> None:
        if node not in self.registered_collections:
            return
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)  # one group more, or its shutdown when there is none
