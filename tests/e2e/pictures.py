"""`make pictures`: docs/page.png, taken from the running product."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

from gpugauge.simulator.scenario.load import load_scenario
from tests.e2e.browsing import launched, opened
from tests.e2e.pages import simulated

PAGE = Path(__file__).parents[2] / "docs" / "page.png"
_SCENARIO, _SECONDS = "node", 840
_WIDTH, _HEIGHT = 1280, 900


def take(target: Path) -> None:
    """Write the picture of the page."""
    scenario = load_scenario(_SCENARIO)
    with (
        patch("socket.gethostname", lambda: "node-7"),
        tempfile.TemporaryDirectory() as folder,
        simulated(scenario, Path(folder) / "node", _SECONDS) as page,
        launched() as browser,
        opened(browser, page.url, _WIDTH, _HEIGHT) as tab,
    ):
        tab.screenshot(path=target)


if __name__ == "__main__":
    take(PAGE)
