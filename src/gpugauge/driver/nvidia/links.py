"""The NVLinks of one GPU: how many it has, and which are up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpugauge.driver.bus import pci_address
from gpugauge.driver.codes import IMPLAUSIBLE, INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, UNSUPPORTED, DriverError
from gpugauge.driver.nvidia.caller import Caller
from gpugauge.driver.nvidia.fieldvalues import FieldValue, FieldValueRequest
from gpugauge.driver.nvidia.plausible import FLAG, LINKS

_COUNT = FieldValue("slow", "", LINKS, 91)
_LINKS_OF_UNKNOWN_COUNT = 18  # the most of any GPU up to NVLink 5
PREFIX = "nvlink_"  # of the fields about NVLinks
_STATE = "nvmlDeviceGetNvLinkState"
_END = "nvmlDeviceGetNvLinkRemotePciInfo_v2"
_ENDS = {1: "npu", 2: "switch"}  # by nvmlIntNvLinkDeviceType_t; GPUs have an address of the node
_FINAL = {INVALID_ARGUMENT, *UNSUPPORTED}


class Links:
    """The count is that of the driver: it also answers for links that the GPU does not have, as if they were down."""

    def __init__(self, call: Caller, handle: Any) -> None:
        self._call, self._handle = call, handle
        self.count: int | None = None  # None: not known
        self._count_supported = True
        self._up: dict[str, bool] = {}
        self.errors: dict[str, dict[str, int]] = {}  # by link and kind, of those that have any
        self._ends: dict[str, str] = {}  # by link; empty where the driver does not know it

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
                if error.code not in _FINAL:
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
        self._count_supported = code not in _FINAL
        return int(count) if code == SUCCESS and _COUNT.check(count) else None

    def add_errors(self, counted: Mapping[str, Mapping[str, int]], totals: Mapping[str, int]) -> None:
        """Add errors by link and kind, of the `totals`. Of a link that has no answer now, the last ones stay."""
        for kind, total in totals.items():
            found = [kinds[kind] for kinds in counted.values() if kind in kinds]
            if len(found) > 1 and min(found) == max(found) and sum(found) > total:  # the driver ignores the link
                counted = {link: {**kinds, kind: 0} for link, kinds in counted.items()}
        for link, kinds in counted.items():
            self.errors[link] = {kind: n for kind, n in {**self.errors.get(link, {}), **kinds}.items() if n}
        self.errors = {link: kinds for link, kinds in self.errors.items() if kinds}

    def ends(self) -> dict[str, str]:
        """Return what is at the other end of links with errors: `switch`, `npu` or a PCI address. Each is read once."""
        for link in self.errors.keys() - self._ends.keys():
            try:
                self._ends[link] = self._end(int(link))
            except DriverError as error:  # noqa: PERF203  (the ends of the other links may be known)
                if error.code in _FINAL and self._up.get(link):
                    self._ends[link] = ""
        return {link: end for link, end in self._ends.items() if end and link in self.errors}

    def _end(self, link: int) -> str:
        try:
            kind = self._call("nvmlDeviceGetNvLinkRemoteDeviceType", self._handle, link)
        except DriverError:
            kind = None  # the address may be that of a GPU
        try:
            return _ENDS.get(kind) or pci_address(self._call(_END, self._handle, link).busId)
        except UnicodeDecodeError:  # the binding decodes the bus id on access
            raise DriverError(IMPLAUSIBLE, _END) from None
