"""The session with the daemon: the messages of this process, in their order."""

from __future__ import annotations

import uuid

from gpugauge.hook.client import Client
from gpugauge.hook.facts import process as facts
from gpugauge.hook.state import TrainingState
from gpugauge.wire import messages as wire


class Publisher:
    """One session. `sequence` is the number of snapshots that were sent."""

    def __init__(self, client: Client, state: TrainingState) -> None:
        self._client, self._state = client, state
        self._session = uuid.uuid4().hex
        self._hello: wire.Hello | None = None
        self.sequence = 0

    def publish(self, now: int, errors: int) -> None:
        """Send a snapshot, if a daemon is connected or can be. `errors` are those of the hook itself."""
        for _ in range(2):  # the second time to a new daemon in the place of one that has ended
            if not self._client.connect(now, self._greeting) or self._client.send(now, self._snapshot(now, errors)):
                break

    def send_end(self, now: int, reason: str) -> None:
        """Send the last message, with the reason for the end of the process."""
        self._client.send(now, wire.encode(wire.Bye(self._session, self.sequence + 1, reason)))

    def _greeting(self) -> tuple[bytes, int | None]:
        """Return the datagram of hello, and the descriptor of the shared record."""
        if self._hello is None:
            self._hello = facts.hello(self._session)
            self._state.record.open()
        return wire.encode(self._hello), self._state.record.descriptor

    def _snapshot(self, now: int, errors: int) -> bytes:
        snapshot = self._state.snapshot(self._session, self.sequence + 1, errors, now)
        self.sequence += 1
        return wire.encode(snapshot)
