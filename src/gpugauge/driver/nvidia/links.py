"""The NVLinks of one GPU: how many it has, and which are up."""

from __future__ import annotations

from typing import Any

from gpugauge.driver.codes import IMPLAUSIBLE, INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, UNSUPPORTED, DriverError
from gpugauge.driver.nvidia.caller import Caller
from gpugauge.driver.nvidia.fieldvalues import FieldValue, FieldValueRequest
from gpugauge.driver.nvidia.plausible import FLAG, LINKS

_COUNT = FieldValue("slow", "", LINKS, 91)
_LINKS_OF_UNKNOWN_COUNT = 18  # the most of any GPU up to NVLink 5
PREFIX = "nvlink_"  # of the fields about NVLinks
_STATE = "nvmlDeviceGetNvLinkState"


class Links:
    """The count is that of the driver: it also answers for links that the GPU does not have, as if they were down."""

    def __init__(self, call: Caller, handle: Any) -> None:
        self._call, self._handle = call, handle
        self.count: int | None = None  # None: not known
        self._count_supported = True
        self._up: dict[str, bool] = {}

    @property
    def none(self) -> bool:
        """Whether the GPU has no NVLinks, as far as is known."""
        return self.count == 0

    def has(self, row: FieldValue) -> bool:
        """Return whether the GPU may have a field value: it has none of the links that it lacks."""
        if not row.field.startswith(PREFIX):
            return True
        return (row.link or 0) < (_LINKS_OF_UNKNOWN_COUNT if self.count is None else self.count)

    def settles(self, row: FieldValue) -> bool:
        """Return whether "not supported" is final: some drivers return it for the values of links that are down."""
        if not row.field.startswith(PREFIX) or not self.count:
            return True
        return any(self._up.values()) if row.link is None else self._up.get(str(row.link), False)

    def read(self) -> dict[str, bool]:
        """Return whether each link is up, by number, without those that cannot be read. Raises DriverError for none."""
        if not self.count:  # a driver that fails may have answered 0
            self.count = self._read_count() if self._count_supported else None
        self._up, failure = {}, DriverError(NOT_SUPPORTED, _STATE)
        for link in range(_LINKS_OF_UNKNOWN_COUNT if self.count is None else self.count):
            try:
                state = self._call(_STATE, self._handle, link)
            except DriverError as error:
                if error.code not in {INVALID_ARGUMENT, *UNSUPPORTED}:
                    failure = error
                continue
            if FLAG(state):
                self._up[str(link)] = bool(state)
            else:
                failure = DriverError(IMPLAUSIBLE, _STATE)
        if not self._up:
            if self.count is None and failure.code in UNSUPPORTED:
                self.count = 0
            raise failure
        return self._up

    def _read_count(self) -> int | None:
        try:
            ((_, code, count),) = FieldValueRequest(self._call, [_COUNT]).read(self._call, self._handle)
        except DriverError as error:
            code, count = error.code, 0
        self._count_supported = code not in {INVALID_ARGUMENT, *UNSUPPORTED}
        return int(count) if code == SUCCESS and _COUNT.check(count) else None
