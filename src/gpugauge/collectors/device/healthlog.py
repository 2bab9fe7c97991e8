"""Log lines about the health of GPUs: memory errors that no Xid reported, and recovery actions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gpugauge.base.logline import fields
from gpugauge.driver.api import Device
from gpugauge.driver.codes import RECOVERY_ACTIONS

log = logging.getLogger("gpugauge.events")

# Xid codes of memory errors, and the time before a reading of the counters in which one explains a new error.
_MEMORY_XIDS = frozenset({48, 63, 64, 92, 94, 95})
_EXPLAINED_SECONDS = 120.0
_ERRORS = "uncorrected_volatile"


@dataclass(slots=True)
class _Health:
    """The last values of one GPU, and since when they are as they are (monotonic seconds)."""

    errors: int | None
    errors_since: float
    action: int | None
    action_since: float


class HealthLog:
    """Logs each change once. `last_xids` returns the Unix times of the last Xid errors of a GPU by code."""

    def __init__(self, last_xids: Callable[[str], dict[int, float]]) -> None:
        self._last_xids = last_xids
        self._known: dict[str, _Health] = {}

    def record(self, devices: tuple[Device, ...], now: float, timestamp: float) -> None:
        """Compare the readings with the last ones; `now` is in monotonic seconds, `timestamp` Unix time."""
        for device in devices:
            if not device.up:
                continue
            known = self._known.setdefault(device.uuid, _Health(None, now, None, now))
            self._record_errors(device, known, now, timestamp)
            self._record_action(device, known, now)

    def _record_errors(self, device: Device, known: _Health, now: float, timestamp: float) -> None:
        errors = (device.reading.ecc_errors or {}).get(_ERRORS)
        if errors is None or errors == known.errors:
            return
        before = known.errors
        if before is not None and errors > before and not self._explained(device.uuid, timestamp):
            new = fields(
                index=device.reading.index,
                uuid=device.uuid,
                reason="ecc_uncorrected",
                errors=errors - before,
                seconds=round(now - known.errors_since, 1),
            )
            log.warning("GPU has uncorrected ECC errors that no Xid reported", extra=new)
        known.errors, known.errors_since = errors, now

    def _explained(self, uuid: str, timestamp: float) -> bool:
        times = [at for xid, at in self._last_xids(uuid).items() if xid in _MEMORY_XIDS]
        return any(timestamp - at <= _EXPLAINED_SECONDS for at in times)

    def _record_action(self, device: Device, known: _Health, now: float) -> None:
        action = device.reading.recovery_action
        if action is None or action == known.action:
            return
        if action or known.action:
            change = fields(
                index=device.reading.index,
                uuid=device.uuid,
                reason=_action(action),
                previous=_action(known.action or 0),
                seconds=round(now - known.action_since, 1),
            )
            if action:
                log.warning("GPU needs a recovery action: %s", _action(action), extra=change)
            else:
                log.info("GPU needs no recovery action any more", extra=change)
        known.action, known.action_since = action, now


def _action(number: int) -> str:
    return RECOVERY_ACTIONS[number] if 0 <= number < len(RECOVERY_ACTIONS) else str(number)
