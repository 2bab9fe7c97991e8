"""The worker process: the one owner of the driver. It reads what it is asked for and sends it raw.

`python -m gpugauge.driver.worker --fd N` answers requests on the socket N until the other end closes it:
`{"id", "op": "open", "simulate": null | {...}}`, `{"id", "op": "read", "index", "groups"}`, `{"id", "op": "close"}`.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any

from gpugauge.driver.api import DriverError, Reply
from gpugauge.driver.frames import receive_frame, send_frame
from gpugauge.driver.nvml import Nvml

_INVALID_ARGUMENT = 2
_UNKNOWN = 999
_REPLY_FIELDS = tuple(f.name for f in fields(Reply))


class Service:
    """Answers one request at a time. Nothing that a request or the driver does raises. `clock` is a steady one, in
    seconds; a simulated driver lives by it too.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nvml = Nvml(clock)
        self._open = False

    def answer(self, request: dict[str, Any]) -> Reply:
        """Do what a request asks and return the answer, a failure included."""
        told: dict[str, Any] = {
            "id": request.get("id", -1),
            "op": str(request.get("op")),
            "index": request.get("index"),
        }
        try:
            told |= self._perform(request)
        except DriverError as error:
            told |= {"failed": error.code, "failed_call": error.call}
        except Exception as error:  # noqa: BLE001  (the parent logs it; a process that dies of it could not say why)
            told |= {"failed": _UNKNOWN, "failed_call": f"{type(error).__name__}: {error}"}
        # The events of a read that failed too: they may say why.
        return Reply(**told, calls=self._nvml.take_calls(), events=self._nvml.take_events())

    def close(self) -> None:
        """Let go of the driver, so that a card can be reset or the driver upgraded. Raises DriverError."""
        if self._open:
            self._open = False
            self._nvml.close()

    def _perform(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the answer."""
        match request:
            case {"op": "open", **options}:
                return {"values": {"driver": self._start(options.get("simulate"))}}
            case {"op": "read", "index": int(index), "groups": list(groups)}:
                values, errors = self._nvml.read(index, groups)
                if "samples" not in groups:
                    return {"values": values, "errors": errors}
                samples, sample_errors = self._nvml.samples(index)
                return {"values": values, "errors": errors | sample_errors, "samples": samples}
            case {"op": "close"}:
                self.close()
                return {}
        raise DriverError(_INVALID_ARGUMENT, f"request {request.get('op')!r}")

    def _start(self, simulation: dict[str, Any] | None) -> dict[str, Any]:
        if simulation is not None:
            # Only here: what a real node runs does not load the simulator.
            from gpugauge.driver.simulated.install import install  # noqa: PLC0415  (needs pydantic)

            install(simulation, self._clock)
        self._nvml.open()
        self._open = True
        return asdict(replace(self._nvml.facts(), simulated=simulation is not None))


def serve(channel: socket.socket, service: Service) -> None:
    """Answer until told to close or until the other end is gone."""
    while True:
        try:
            request = receive_frame(channel)
        except (EOFError, OSError, ValueError, TypeError):  # closed, or not our parent's language
            return
        reply = service.answer(request)
        try:
            send_frame(channel, {name: getattr(reply, name) for name in _REPLY_FIELDS})
        except OSError:
            return
        if reply.op == "close":
            return


def main(arguments: list[str]) -> int:
    """Serve on the inherited socket; returns the exit status."""
    match arguments:
        case ["--fd", number] if number.isdigit():
            channel = socket.socket(fileno=int(number))
        case _:
            return 2
    # The terminal sends these to the parent too, and it is the parent that decides.
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    service = Service()
    gc.freeze()  # what is there now stays: the garbage collector need not look at it again and again
    with channel, contextlib.suppress(DriverError):
        try:
            serve(channel, service)
        finally:
            # A killed owner once froze a MIG card (dcgm-exporter#84): shut down on every way out.
            service.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
