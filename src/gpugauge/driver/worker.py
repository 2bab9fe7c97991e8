"""The worker process: the only owner of the vendor library. With `--fd N --bell M --pulse P` it replies to requests on
the socket N until the other end closes it: `{"id", "op": "open", ...}` with the options of the backend, `{"id", "op":
"read", "index", "groups"}`, `{"id", "op": "close"}`. A read of several "indexes" gets a reply for each, with ids from
"id" on. The eventfd M is signalled once for all of them; P has the time at which the last call ended.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from gpugauge.base import privileges
from gpugauge.driver.codes import INVALID_ARGUMENT, WORKER_ERROR, DriverError, DriverFacts, Group
from gpugauge.driver.frames import PULSE_BYTES, Inbox, frame, message, reply

if TYPE_CHECKING:
    from gpugauge.driver.api import Reply
from collections.abc import Sequence

from gpugauge.driver.codes import UNINITIALIZED

give_up_privileges = privileges.give_up  # reading needs none

# Bytes of replies after which the eventfd is signalled before the last reply: the socket buffer must not fill.
_SIGNAL_BYTES = 1 << 16


class Calls:
    """The calls of a library, counted and timed. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._counts: dict[str, list[float]] = {}
        self.ended: memoryview[float] | list[float] = [0.0]
        """The time at which the last call ended, in monotonic seconds."""
        self.spent, self.number = 0.0, 0
        """The seconds that all calls took, and their number."""

    def count(self, function: str, began: float) -> None:
        """Count a call that ends now and began at a time in monotonic seconds."""
        self.ended[0] = now = self.clock()
        took = now - began
        self.spent += took
        self.number += 1
        counter = self._counts.setdefault(function, [0, 0.0, 0.0])
        counter[0] += 1
        counter[1] += took
        counter[2] = max(counter[2], took)

    def take(self) -> dict[str, list[float]]:
        """Return and reset the counters (see `Reply.calls`)."""
        counts, self._counts = self._counts, {}
        return counts


class Backend(Protocol):
    """The library of a vendor. Codes are those of `driver.codes`; methods raise DriverError."""

    @property
    def calls(self) -> Calls:
        """The calls of the library."""

    @property
    def open(self) -> Callable[..., None]:
        """A function that loads and initialises the library; its keywords are the options of the backend."""

    def facts(self) -> DriverFacts:
        """Return the facts of the driver as a whole."""

    def read(self, index: int, groups: Iterable[Group]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return the values of a GPU by group and field, and the codes of the fields that failed."""

    def samples(self, index: int) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the samples since the last call (see `Reply.samples`), and the codes of the rings that failed."""

    def lacks(self, index: int) -> Collection[str]:
        """Return the fields that a GPU does not support, as far as that is known."""

    def take_events(self) -> list[dict[str, Any]]:
        """Return and remove the events since the last call (see `Reply.events`)."""

    def close(self) -> None:
        """Shut the library down."""


class Service:
    """Performs requests. No request and no failure of the driver raises. `clock` returns monotonic seconds."""

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._backend = backend
        self._open = False

    def answer(self, request: dict[str, Any]) -> Reply:
        """Perform a request and return the reply, also if it failed."""
        return reply(self.message(request))

    def message(self, request: dict[str, Any]) -> dict[str, Any]:
        """Perform a request and return the reply as it is sent."""
        sent: dict[str, Any] = {
            "id": request.get("id", -1),
            "op": str(request.get("op")),
            "index": request.get("index"),
        }
        try:
            sent |= self._perform(request)
        except DriverError as error:
            sent |= {"failed": error.code, "failed_call": error.call}
        except Exception as error:  # noqa: BLE001  (the daemon logs it)
            sent |= {"failed": WORKER_ERROR, "failed_call": _described(error)}
        if request.get("calls", True) or "failed" in sent:
            sent["calls"] = self._backend.calls.take()
        # A failed read has its events too: they may have the reason.
        return message(**sent, events=self._backend.take_events(), received=round(self._clock(), 4))

    def close(self) -> None:
        """Close the driver, so that a GPU can be reset or the driver upgraded. Raises DriverError."""
        if self._open:
            self._open = False
            self._backend.close()

    def _perform(self, request: dict[str, Any]) -> dict[str, Any]:
        match request:
            case {"op": "open", **rest}:
                rest.pop("id", None)
                return {"values": {"driver": self._start(rest)}}
            case {"op": "read", "index": int(index), "groups": list(groups)}:
                calls = self._backend.calls
                seconds, number = calls.spent, calls.number
                values, errors = self._backend.read(index, [group for group in groups if group != "samples"])
                samples, more = self._backend.samples(index) if "samples" in groups else ({}, {})
                errors |= more
                if not (any(values.values()) or any(samples.values())):
                    _raise_common(errors, self._backend.lacks(index))
                spent = [round(calls.spent - seconds, 6), calls.number - number]
                return {"values": values, "errors": errors, "samples": samples, "spent": spent}
            case {"op": "close"}:
                self.close()
                return {}
        raise DriverError(INVALID_ARGUMENT, f"request {request.get('op')!r}")

    def _start(self, options: dict[str, Any]) -> dict[str, Any]:
        self._backend.open(**options)
        self._open = True
        return self._backend.facts()._asdict()


def _raise_common(errors: dict[str, str], lacks: Collection[str]) -> None:
    """Raise DriverError with the most frequent code of a reading without any value, unless nothing failed in it."""
    codes = [code for field, code in errors.items() if field not in lacks and field != "events"]
    if codes:
        raise DriverError(max(codes, key=codes.count), "every call")


def _described(error: Exception) -> str:
    """Return the type, the message and the innermost place of an exception of the worker itself."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    place = f" in {trace.tb_frame.f_globals.get('__name__')}, line {trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__}: {error}{place}"


def serve(channel: socket.socket, service: Service, signal_replies: Callable[[], None] = lambda: None) -> None:
    """Reply to requests until a close request or the end of the socket. `signal_replies` wakes the daemon up."""
    inbox, unsignalled = Inbox(channel), 0
    while True:
        try:
            request = inbox.take()
            if request is None:
                if unsignalled:
                    signal_replies()
                    unsignalled = 0
                inbox.fill()
                continue
        except (EOFError, OSError, ValueError, TypeError):  # closed, or not the protocol of the daemon
            return
        for single in _singles(request):
            answer = frame(service.message(single))
            try:
                channel.sendall(answer)
            except OSError:
                return
            unsignalled += len(answer)
            if unsignalled > _SIGNAL_BYTES or single.get("op") == "close":
                signal_replies()
                unsignalled = 0
        if request.get("op") == "close":
            return


def _singles(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the request for each GPU; the last reply has the cost of all calls."""
    match request:
        case {"op": "read", "id": int(first), "indexes": list(indexes), "groups": groups}:
            last = first + len(indexes) - 1
            for number, index in enumerate(indexes, first):
                yield {"id": number, "op": "read", "index": index, "groups": groups, "calls": number == last}
        case _:
            yield request


def main(arguments: list[str], backend: Backend) -> int:
    """Serve on the inherited socket; return the exit status."""
    match arguments:
        case ["--fd", number, "--bell", bell, "--pulse", pulse] if (number + bell + pulse).isdigit():
            for inherited in (number, bell, pulse):  # not by the programs that the library starts
                os.set_inheritable(int(inherited), False)
            channel = socket.socket(fileno=int(number))
            signal_replies = partial(os.eventfd_write, int(bell), 1)
            backend.calls.ended = memoryview(mmap.mmap(int(pulse), PULSE_BYTES)).cast("d")
        case _:
            return 2
    # The terminal sends these to the daemon too, and the daemon ends its worker.
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    service = Service(backend)
    # Objects that exist now live as long as the process, and a reply leaves no cycles: frequent collections waste CPU.
    gc.freeze()
    gc.set_threshold(20_000, 5, 5)
    with channel, contextlib.suppress(DriverError):
        try:
            serve(channel, service, signal_replies)
        finally:
            # On every exit: a killed owner of the driver froze a MIG GPU (dcgm-exporter#84).
            service.close()
    return 0


class Joined:
    """Several backends as one. One that cannot be opened has no GPUs, unless none can. They share their calls."""

    def __init__(self, backends: Sequence[Backend], calls: Calls) -> None:
        self._backends, self.calls = tuple(backends), calls
        self._opened: list[tuple[Backend, DriverFacts]] = []

    def open(self, **options: Any) -> None:
        """Open each backend. Raises the DriverError of the first one if none can be opened."""
        errors, self._opened = [], []
        for backend in self._backends:
            try:
                backend.open(**options)
                self._opened.append((backend, backend.facts()))
            except DriverError as error:  # noqa: PERF203  (two backends)
                errors.append(error)
        if not any(facts.device_count for _, facts in self._opened) and errors:
            raise errors[0]

    def close(self) -> None:
        """Close each backend. Raises DriverError."""
        opened, self._opened = self._opened, []
        for backend, _ in opened:
            backend.close()

    def facts(self) -> DriverFacts:
        """Return the number of all GPUs, and the other facts of the first driver that has them."""
        versions, cuda = (next((facts[place] for _, facts in self._opened if facts[place]), None) for place in (1, 2))
        return DriverFacts(sum(facts.device_count for _, facts in self._opened), versions, cuda)  # type: ignore[arg-type]  # fields of a tuple

    def read(self, index: int, groups: Iterable[Group]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return what the backend of a GPU returns, with the index of this one. Raises DriverError."""
        backend, own = self._of(index)
        values, errors = backend.read(own, groups)
        if "index" in values.get("static", {}):
            values["static"]["index"] = index
        return values, errors

    def samples(self, index: int) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the samples of a GPU. Raises DriverError."""
        backend, own = self._of(index)
        return backend.samples(own)

    def lacks(self, index: int) -> Collection[str]:
        """Return the fields that a GPU does not support."""
        backend, own = self._of(index)
        return backend.lacks(own)

    def take_events(self) -> list[dict[str, Any]]:
        """Return and remove the events of all."""
        return [event for backend, _ in self._opened for event in backend.take_events()]

    def _of(self, index: int) -> tuple[Backend, int]:
        for backend, facts in self._opened[:-1]:
            if index < facts.device_count:
                return backend, index
            index -= facts.device_count
        if not self._opened:
            raise DriverError(UNINITIALIZED, "index")
        return self._opened[-1][0], index
