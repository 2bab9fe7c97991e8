"""How much the drawn cases draw: a part with the seed of the day at a push, all of it with GPUGAUGE_EVERYTHING=1."""

from __future__ import annotations

import datetime as dt
import os

EVERYTHING = os.environ.get("GPUGAUGE_EVERYTHING") == "1"


def seed() -> int:
    """Return the seed of the day, in UTC, or that of GPUGAUGE_SEED."""
    today = dt.datetime.now(dt.timezone.utc).toordinal()
    return int(os.environ.get("GPUGAUGE_SEED") or today)


def share(number: int) -> int:
    """Return all of `number`, or a tenth of it."""
    return number if EVERYTHING else max(1, number // 10)
