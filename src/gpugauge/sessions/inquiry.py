"""Questions to a training process that makes no progress: where its training thread is, and whether it waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpugauge.wire import messages as wire
from gpugauge.wire.record import SharedRecord

QUIET_SECONDS = 10.0  # without a step, a batch or another phase, until a process is asked, and between two questions
SILENT_SECONDS = 25.0  # without an answer
WAITING, ELSEWHERE, SILENT = "waiting", "elsewhere", "silent"
ENDED = "ended"  # of a process that is gone, which answers nothing


class Inquiry(NamedTuple):
    """What a process has answered since its last progress, in Unix times: of the `progress`, of the first question
    `asked` in vain, of the last answer, of the first one by which it is `waiting`, and by group of the first one that
    showed a collective `in_flight`.
    """

    progress: float
    asked: float | None = None
    answer: wire.Answer | None = None
    answered: float | None = None
    in_flight: Mapping[str, float] = {}
    position: str | None = None  # one of these three, None while it is not known
    stopped: bool = False
    waiting: float | None = None

    def ask(self, unix: float, *, stopped: bool) -> Inquiry:
        """Return the inquiry after another question."""
        asked = unix if self.asked is None else self.asked
        silent = stopped or unix - asked >= SILENT_SECONDS
        found = self._replace(asked=asked, stopped=stopped)
        return found._replace(position=SILENT, waiting=None) if silent else found

    def take(self, answer: wire.Answer, unix: float) -> Inquiry:
        """Return the inquiry after an answer."""
        before = self.answer.groups if self.answer else ()
        flying = {group.name: group for group in answer.groups if group.enqueued > group.completed}
        since = {name: self.in_flight.get(name, unix) if group in before else unix for name, group in flying.items()}
        position, waiting = (WAITING, self.waiting or unix) if answer.waits_in else (ELSEWHERE, None)
        found = self._replace(asked=None, answer=answer, answered=unix, in_flight=since)
        return found._replace(position=position, waiting=waiting)


class Inquirer:
    """The inquiry of one connection. `answers` is whether its process answers."""

    def __init__(self) -> None:
        self.answers = False
        self.current: Inquiry | None = None
        self._before: tuple[object, ...] = ()
        self._changed = self._due = 0.0

    def is_due(self, record: SharedRecord | None, now: float, unix: float) -> bool:
        """Return whether to ask, by the shared record at the monotonic time `now`. Progress ends the inquiry."""
        if not self.answers or record is None:
            return False
        found = record.steps, record.batches, record.phase, record.since
        if found != self._before:
            self._before, self._changed, self.current = found, now, None
            self._due = now + QUIET_SECONDS
        if now < self._due:
            return False
        self._due = now + QUIET_SECONDS
        self.current = self.current or Inquiry(unix - (now - self._changed))
        return True

    def take(self, answer: wire.Answer, unix: float) -> None:
        """Take an answer; one that comes late, after progress, says nothing about the present."""
        if self.current is not None:
            self.current = self.current.take(answer, unix)
