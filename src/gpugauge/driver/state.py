"""The state of the driver: up, down for a reason, or released; and the log lines of its changes."""

from __future__ import annotations

import logging
import time

from gpugauge.base.logline import Condition, fields
from gpugauge.driver.advice import advice
from gpugauge.driver.api import RELEASED, DriverFacts

log = logging.getLogger("gpugauge.driver")


class DriverState:
    """`reason` is "ok" while the driver is open, `facts` are those of the open driver, and `lost_since` (monotonic
    seconds) is set while a driver that was up is down.
    """

    def __init__(self) -> None:
        self.reason = "starting"
        self.facts: DriverFacts | None = None
        self.lost_since: float | None = None
        self._device_count: int | None = None  # when the driver was opened last
        self._was_released = False  # since then: GPUs may have been reset or exchanged
        self._failure = Condition(log, logging.ERROR)

    @property
    def released(self) -> bool:
        """Whether the driver is closed on request."""
        return self.reason == RELEASED

    def set_up(self, facts: DriverFacts) -> bool:
        """Record that the driver is open; return whether it has as many GPUs as when it was opened last,
        unless it was released since.
        """
        self._failure.recovered("driver opened", version=facts.driver_version, devices=facts.device_count)
        same_devices = facts.device_count == self._device_count and not self._was_released
        self._was_released = False
        self.facts, self.reason, self.lost_since, self._device_count = facts, "ok", None, facts.device_count
        return same_devices

    def set_down(self, reason: str, **log_fields: object) -> None:
        """Record that the driver is down; it is logged once per reason."""
        self._failure.failing(advice(reason), reason=reason, **log_fields)
        self.reason, self.facts = reason, None
        if self._device_count is not None and self.lost_since is None:
            self.lost_since = time.monotonic()

    def set_released(self, seconds: float) -> None:
        """Record that the driver is released for `seconds`."""
        self.reason, self.facts, self.lost_since, self._was_released = RELEASED, None, None, True
        log.info("driver released", extra=fields(seconds=round(seconds)))

    def end_release(self) -> None:
        """Record that the release is over."""
        self.reason = "starting"
        log.info("driver release ended")
