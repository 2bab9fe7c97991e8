"""The daemon's answer about its node, as the commands read it."""

from __future__ import annotations

import json
from typing import Any

from gpugauge.terminal import screen
from gpugauge.terminal.process import process_screen
from gpugauge.terminal.table import table


def read(body: bytes) -> dict[str, Any] | None:
    """Return the status in the body of an answer, None if it is none that can be drawn: not one of this version."""
    try:
        facts: dict[str, Any] = json.loads(body)
        now, _ = facts["timestamp"], (facts["answer"], facts["version"])
        _ = table(facts, False, now, 200), screen.gpu_lines(facts, 200), list(map(screen.gpu_details, facts["gpus"]))
        _ = [(p["detail"], p["advice"], p["gain_words"], *p["gpus"]) for p in facts["problems"]]
        screen.process_lines(shown := screen.chosen(facts, "lost", False, ""), now, 200)
        for process in shown[:20]:  # all of a large node would take a second
            _ = screen.process_details(process, now), process_screen(process, now, 200, colour=False)
    except Exception:  # noqa: BLE001  (whatever a document of a stranger leads to)
        return None
    return facts
