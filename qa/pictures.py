"""`make pictures`: the pictures in docs, taken from the running product, and of which layout they are."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import tempfile
from pathlib import Path
from unittest.mock import patch

from tests.e2e.browsing import launched, opened
from tests.e2e.pages import simulated

from gpugauge.cli.status import fetch
from gpugauge.faults.repair import Site, site
from gpugauge.settings.kinds import DEFAULT_PORT, ListenAddress
from gpugauge.settings.model import Settings, Web
from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.terminal.reply import Feed
from gpugauge.web.client import RequestError

_ROOT = Path(__file__).parents[1]
DOCS = _ROOT / "docs"
TAKEN = DOCS / "pictures.json"
# By picture, the code that draws it.
_PAGE = ("web/page/*.py", "web/page/page.*")
_CODE = {"fault.png": _PAGE, "page.png": _PAGE, "top.svg": ("terminal/*.py",)}
_COMMENT = re.compile(r"^\s*(#|//).*\n", re.MULTILINE)
# Name, scenario, seconds of it, height.
_PICTURES = (("page.png", "node", 840, 900), ("fault.png", "failing-card", 240, 700))
_WIDTH = 1280
_CELLS = 120, 32


def layouts() -> dict[str, str]:
    """Return a digest of the code that draws each picture."""
    found = {}
    for name, patterns in _CODE.items():
        code = sorted(path for pattern in patterns for path in (_ROOT / "src" / "gpugauge").glob(pattern))
        text = "\n".join(_COMMENT.sub("", path.read_text(encoding="utf-8")) for path in code)
        found[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return found


def take(folder: Path) -> None:
    """Write the pictures of the page and of `gpugauge top`."""
    with patch("socket.gethostname", lambda: "node-7"), tempfile.TemporaryDirectory() as files:
        for name, scenario, seconds, height in _PICTURES:
            with simulated(load_scenario(scenario), Path(files) / name, seconds, of_unit(Path(files))) as page:
                if name == "page.png":
                    (folder / "top.svg").write_text(asyncio.run(_terminal(page.url)), encoding="utf-8")
                with launched() as browser, opened(browser, page.url, _WIDTH, height) as tab:
                    tab.screenshot(path=folder / name)


def of_unit(folder: Path) -> Site:
    """Return the place of the daemon that the systemd unit starts on a node without a manager of jobs."""
    cgroup = folder / "proc/self/cgroup"
    cgroup.parent.mkdir(parents=True, exist_ok=True)
    cgroup.write_text("0::/system.slice/gpugauge.service\n")
    settings = Settings(web=Web(listen_address=(ListenAddress("", DEFAULT_PORT),)))
    with patch("gpugauge.faults.repair.shares_host_users", lambda: True):  # also if they are taken in a container
        return site(settings, "http", folder / "cgroups", {"NOTIFY_SOCKET": "/run/systemd/notify"}, folder)


async def _terminal(url: str) -> str:
    from gpugauge.terminal.top import Top  # noqa: PLC0415  (needs an extra)

    app = Top(feed := Feed(lambda: fetch(url).status, RequestError, 3600.0))
    async with app.run_test(size=_CELLS) as pilot:
        while feed.latest.status is None:
            await asyncio.sleep(0.01)
        app._follow()
        await pilot.pause()
        picture = app.export_screenshot(title="gpugauge top")
    # The document loads nothing.
    lines = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"


if __name__ == "__main__":
    take(DOCS)
    TAKEN.write_text(json.dumps(layouts(), indent=2) + "\n", encoding="utf-8")
