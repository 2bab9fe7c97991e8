"""The GPUs of several vendors behind one worker: those of the first backend first, with consecutive indexes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from gpugauge.driver.codes import UNINITIALIZED, DriverError, DriverFacts, Group
from gpugauge.driver.worker import Backend, Calls


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
