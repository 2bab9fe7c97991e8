"""An hour of simulated nodes: the daemon in virtual time, its page as templates whose counters go on at their rates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from qa.bench.fleet_bodies import Template, template

from gpugauge.simulator.scenario.load import load_scenario
from tests.e2e.backfill import Sample
from tests.virtual import START, VirtualDaemon

_TEXT = "text/plain;version=0.0.4"
_WARM_UP, _PAUSE, _PAGES = 75, 10, 3
_OFFSET = 7
_LINE = re.compile(rb"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? %b$")


def pages(scenario: str, folder: Path) -> Template:
    """Return the template of a scenario's page."""
    daemon = VirtualDaemon(load_scenario(scenario), folder)
    bodies = []
    try:
        for second in range(_WARM_UP + _PAGES * _PAUSE + 1):
            daemon.second()
            if second >= _WARM_UP and (second - _WARM_UP) % _PAUSE == 0:
                bodies.append((START + daemon.now - 1, daemon.exposition.respond(_TEXT, "identity", daemon.now).body))
    finally:
        daemon.close()
    return template(bodies)


def hour(
    nodes: Mapping[str, Template], end: int, scrape: int, down: Mapping[str, int], seconds: int = 3600
) -> Iterator[Sample]:
    """Yield the hour before `end`. `down` are the minutes for which a node is gone."""
    lines = {name: _names(page, name) for name, page in nodes.items()}
    # Scrapes and steps of a query do not coincide, so that a range of one interval has one sample.
    for second in range(end - seconds - _OFFSET, end, scrape):
        for name, page in nodes.items():
            labels = f'job="gpugauge",instance="{name}"'
            gone = end - second < down.get(name, 0) * 60
            yield f"up{{{labels}}}", float(not gone), second
            if not gone:
                yield f"scrape_duration_seconds{{{labels}}}", 0.01, second
                values = page.values(second, end - 7200)
                yield from ((each, float(value), second) for each, value in zip(lines[name], values, strict=True))


def _names(page: Template, node: str) -> list[str]:
    """Return the names of the samples with their labels and those of the scrape."""
    found = [_LINE.match(line.rstrip(b"\n").rpartition(b"\n")[2].replace(b"%%", b"%")) for line in page.lines]
    scraped = f'job="gpugauge",instance="{node}"'
    return [f"{m[1].decode()}{{{m[2].decode() + ',' if m[2] else ''}{scraped}}}" for m in found if m]
