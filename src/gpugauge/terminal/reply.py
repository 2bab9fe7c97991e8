"""The daemon's answer about its node, as the commands read it."""

from __future__ import annotations

import json
from typing import Any

from gpugauge.terminal import screen
from gpugauge.terminal.process import process_screen
from gpugauge.terminal.table import table

_WIDTH = 200  # at which each column is drawn


def read(body: bytes) -> dict[str, Any] | None:
    """Return the status in the body of an answer. None if it is none, or not one of this version: another server, or
    another version, may leave out or rename what the screens show. So whatever can be drawn is usable.
    """
    try:
        facts: dict[str, Any] = json.loads(body)
        now, found = facts["timestamp"], screen.processes(facts)
        usable = bool(facts["answer"]) and "version" in facts
        table(facts, False, now, _WIDTH)
        for problem in facts["problems"]:
            "".join((problem["kind"], problem["text"], problem["detail"] or "", *problem["gpus"]))
        screen.gpu_lines(facts, _WIDTH)
        for gpu in facts["gpus"]:
            screen.gpu_details(gpu)
        screen.process_lines(screen.chosen(facts, "lost", False, ""), now, _WIDTH)
        for value in screen.SORTS.values():
            sorted(key for process in found if (key := value(process)) is not None)
        # One for each set of facts: on a large node, all would take a second.
        for process in {str({name: type(fact) for name, fact in each.facts.items()}): each for each in found}.values():
            screen.process_details(process, now)
            process_screen(process, now, _WIDTH, colour=False)
    except Exception:  # noqa: BLE001  (whatever a stranger's document leads to)
        return None
    return facts if usable else None
