"""What becomes of the worker's answers: they go into the inventory, and into a line for the collectors."""

from __future__ import annotations

import time
from collections import deque

from gpugauge.driver.api import Reply
from gpugauge.driver.inventory import Inventory

_MOST = 100_000  # answers that wait; the oldest go first


class Intake:
    """Fed by the driver's thread, drained by the sampler's."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._replies: deque[Reply] = deque(maxlen=_MOST)
        self._worker = 0
        self.excluded: set[int] = set()
        """GPUs that the present worker need not be asked about."""

    def begin(self, worker: int) -> None:
        """A new worker, the so many-th, enumerates the GPUs anew."""
        self.excluded, self._worker = set(), worker
        self._inventory.reset_indexes()

    def accept(self, index: int, reply: Reply, devices: frozenset[str]) -> None:
        """Take an answer in, unless the GPU is none of `devices`, by index or uuid, where there are any."""
        uuid = reply.values.get("static", {}).get("uuid")
        if uuid and devices and not {str(index), uuid} & devices:
            self.excluded.add(index)
            self._inventory.forget(uuid)
            return
        self._inventory.apply(reply, time.monotonic())
        self.queue(index, reply)

    def queue(self, index: int, reply: Reply) -> None:
        """Let the collectors see an answer."""
        reply.uuid, reply.worker = self._inventory.uuid(index) or "", self._worker
        self._replies.append(reply)

    def drain(self) -> tuple[Reply, ...]:
        """Return and forget the answers that came since the last call, oldest first."""
        replies = []
        while self._replies:
            replies.append(self._replies.popleft())
        return tuple(replies)
