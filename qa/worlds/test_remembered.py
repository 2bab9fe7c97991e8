"""GPUs of which only the state file knows, on a machine without a GPU and without a driver."""

from __future__ import annotations

import random
from typing import Any

from tests.drawn import seeds
from tests.simulation import status
from tests.status.statusfacts import family

from gpugauge.snapshot import Section, Snapshot
from gpugauge.status.history import History
from gpugauge.status.model import Status, decoded
from gpugauge.terminal.table import table
from gpugauge.web.page.links import NO_LINKS
from gpugauge.web.page.render import content
from qa.worlds.nodes import NOW
from qa.worlds.scraped import snapshot_of


def moment(count: int, reason: str, second: float = 0.0, *, up: bool = False) -> Snapshot:
    uuids = [{"uuid": f"GPU-{number}"} for number in range(count)]
    down = [({**uuid, "reason": "driver_down"}, 1.0) for uuid in uuids]
    families = (
        family("gpugauge_driver_up", ({"reason": "ok" if up else reason}, int(up))),
        family("gpu_up", *((uuid, int(up)) for uuid in uuids)),
        family("gpu_down_reason", *([] if up else down)),
        family("gpu_info", *((uuid | {"index": str(number)}, 1) for number, uuid in enumerate(uuids))),
    )
    return snapshot_of(NOW + second, 100.0 + second, (Section("all", families),), {})


@seeds(range(40))
def test_what_is_only_remembered_is_said_so(seed: int) -> None:
    dice = random.Random(seed)
    count, reason = dice.randint(1, 8), dice.choice(["library_not_found", "driver_not_loaded", "timeout", "unknown"])
    seen, on_bus = dice.random() < 0.3, dice.random() < 0.3
    history = History()
    if seen:  # by this daemon
        history.feed(moment(count, reason, up=True))
    facts: dict[str, Any] = status(moment(count, reason, 10.0), history, lambda: on_bus)

    remembered = reason in {"library_not_found", "driver_not_loaded"} and not seen and not on_bus
    were = "GPU that was here before is" if count == 1 else "GPUs that were here before are"
    assert facts["answer"].startswith(f"{count} {were} not there now") == remembered
    html = "".join(content(decoded(Status, facts), None, NO_LINKS))
    for view in (table(decoded(Status, facts), False, NOW, 200), html):
        assert ("remembered" in view) == ("gpugauge forget" in view) == remembered
        assert ("the driver is down" in view) != remembered
    assert any(problem["kind"] == "driver" for problem in facts["problems"]) != remembered
    assert sum(len(problem["gpus"]) for problem in facts["problems"] if problem["kind"] == "gpu_down") == count
    assert {gpu["down_reason"] for gpu in facts["gpus"]} == {"remembered" if remembered else "driver_down"}
