"""Draw the dashboards on an hour of simulated nodes with the rules, in states that contradict each other easily.

Grafana's components come from npm, once, into ~/.cache/gpugauge-boards (a minute, 600 MB). Drawn by main.jsx itself is
the grid; there are no links, annotations and filters. docs/dashboard.png is the fleet in the state `busy`.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grafana.build import DASHBOARDS
from grafana.build.queries import EVERY_PRICE
from tests.e2e.backfill import Api, Sample, evaluate_rules, written
from tests.e2e.browsing import launched
from tests.e2e.grafana import Grafana
from tests.e2e.programs import prometheus
from tests.e2e.simulated_hour import hour, pages
from tests.grafana.dashboard_reading import Json, instant, panels
from tests.needs import need

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from qa.bench.fleet_bodies import Template

_HERE, _HOME = Path(__file__).parent, Path.home() / ".cache" / "gpugauge-boards"
_DATA = _HOME / f"data-{os.getpid()}.json"  # several may draw at once
_SECONDS, _WIDTH = 3600, 1440
# Data and rules begin so long before the time shown: the longest of the windows of the rules.
_BEFORE = 30 * 60
_SCRAPE, _MILLISECONDS = 15, 600_000
_LOADERS = ("svg", "png", "ttf", "woff", "woff2")
# A training on the CPU of a machine with a GPU.
_ON_CPU = """\
description: a training on the CPU
gpus: {model: h100}
processes:
  - {pid: 7101, gpus: [], uid: 1000, pipeline: {host: 0.03, load: 0.8, workers: 1}, command: python3 cpu.py}
"""


@dataclass(frozen=True)
class State:
    """A fleet: scenarios by node, the minutes for which nodes are gone, and those for which it is seen. With `clusters`
    each node is in all of them.
    """

    nodes: Mapping[str, str]
    down: Mapping[str, int] = field(default_factory=dict)
    minutes: int = (_SECONDS + _BEFORE) // 60
    clusters: tuple[str, ...] = ()


_BUSY = {"node-1": "node", "node-2": "bottlenecks", "node-3": "healthy"}
STATES = {
    "calm": State({"node-3": "healthy", "node-4": "idle"}),
    "busy": State(_BUSY),
    "faulty": State({"node-1": "failing-card", "node-2": "lost-card", "node-3": "healthy"}),
    "young": State(_BUSY, minutes=1),
    "dead": State({**_BUSY, "node-1": "failing-card"}, {"node-1": 25}),
    "cpu": State({"node-1": "cpu", "node-3": "healthy"}),
    "clusters": State({"node-1": "bottlenecks", "node-2": "starved"}, clusters=("east", "west")),
}


def samples(state: State, templates: Mapping[str, Template], end: int) -> Iterator[Sample]:
    """Yield the series before `end`."""
    nodes = {name: templates[scenario] for name, scenario in state.nodes.items()}
    for name, value, second in hour(nodes, end, _SCRAPE, state.down, _SECONDS + _BEFORE):
        if end - second <= 60 * state.minutes:
            for cluster in state.clusters or ("",):
                yield (f'{name[:-1]},cluster="{cluster}"}}' if cluster else name), value, second


def drawn(opened_board: Grafana) -> Json:
    """Return what main.jsx draws: the dashboard, its variables, and the results of its queries."""
    board, values = opened_board.dashboard, opened_board.values()
    data: dict[int, list[Json]] = {}
    for panel in panels(board):
        points = panel.get("maxDataPoints") or max(100, _WIDTH * panel["gridPos"]["w"] // 24 - 40)
        for target in panel["targets"]:
            query, step = opened_board.text(target, points, values)
            api = opened_board.api
            result = api.now(query) if instant(target) else api.over_time(query, step)
            shown = {"refId": target["refId"], "format": target.get("format"), "legend": target.get("legendFormat")}
            data.setdefault(panel["id"], []).append({**shown, "step": step, "result": result})
    texts = {name: ["All" if value in {".*", ".+"} else value] for name, value in values.items()}
    return {"board": board, "texts": texts, "now": opened_board.api.end, "rng": _SECONDS, "data": data}


def bundle() -> None:
    """Install the components and bundle main.jsx, unless that is done."""
    _HOME.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "main.jsx", "index.html"):
        shutil.copy(_HERE / name, _HOME / name)
    if not (_HOME / "node_modules" / "@grafana" / "ui").exists():
        subprocess.run([need("npm"), "install", "--silent", "--no-audit", "--legacy-peer-deps"], cwd=_HOME, check=True)
    made = _HOME / "main.js"
    if not made.exists() or made.stat().st_mtime < (_HERE / "main.jsx").stat().st_mtime:
        command = ["node_modules/.bin/esbuild", "main.jsx", "--bundle", "--minify", "--outfile=main.js"]
        command += ["--log-level=error", '--define:process.env.NODE_ENV="production"', "--define:global=window"]
        subprocess.run([*command, *(f"--loader:.{kind}=dataurl" for kind in _LOADERS)], cwd=_HOME, check=True)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the files of a folder."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def boards(api: Api, state: State) -> Iterator[tuple[str, Grafana]]:
    """Yield the dashboards as people open them, and those of each node and of a job on it."""
    for name in ("fleet", "job", "exporter", "cost"):
        yield name, Grafana(api, DASHBOARDS[name]())
    for node in state.nodes:
        yield node, Grafana(api, DASHBOARDS["node"](), {"instance": node})
        of = api.now(f'last_over_time(gpu_process_host_info{{workload_job!="",instance="{node}"}}[1h])')
        for series in of[:1]:
            yield f"job-of-{node}", Grafana(api, DASHBOARDS["job"](), {"workload": series["metric"]["workload_job"]})


def picture(browser: Any, url: str, path: Path, height: int, now: int) -> None:
    """Write the picture of the dashboard in _DATA, at its own time."""
    tab = browser.new_page(viewport={"width": _WIDTH, "height": height})
    tab.set_default_timeout(_MILLISECONDS)
    tab.clock.set_fixed_time(now)
    tab.goto(f"{url}/index.html?d=/{_DATA.name}&w={_WIDTH}")
    tab.wait_for_function("document.title == 'ready'")
    tab.screenshot(path=path)
    tab.close()


def draw(names: Iterable[str], out: Path) -> None:
    """Write a picture of each dashboard in each of the states, and of its first screen."""
    bundle()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made, launched() as browser, served(_HOME) as url:
        folder = Path(made)
        (folder / "cpu.yaml").write_text(_ON_CPU)
        templates: dict[str, Template] = {}
        for name in names:
            state, end = STATES[name], int(time.time()) // 60 * 60
            for scenario in {*state.nodes.values()} - templates.keys():
                source = str(folder / "cpu.yaml") if scenario == "cpu" else scenario
                templates[scenario] = pages(source, folder / f"{scenario}-node")
            database = folder / name
            database.mkdir()
            written(database, samples(state, templates, end))
            parameters, of_cost = (
                Parameters(),
                {
                    **EVERY_PRICE,
                    "prices": {"NVIDIA H100 80GB HBM3": 2.0},
                    "currency": "EUR",
                    "pue": 1.3,
                    "grams": 380.0,
                },
            )
            for groups in (None, rules.cost_groups(parameters, **of_cost)):
                evaluate_rules(database, end, _SECONDS + _BEFORE, parameters, groups)
            # As in one that scrapes: a series ends with the first scrape that fails.
            with prometheus(database, options=["--query.lookback-delta=75s"]) as server:
                # At the time of an evaluation, older Prometheus count both ends of a range.
                for board, shown in boards(Api(server.url, end + 1, _SECONDS), state):
                    found = drawn(shown)
                    _DATA.write_text(json.dumps(found))
                    heights = [each["gridPos"]["y"] + each["gridPos"]["h"] for each in found["board"]["panels"]]
                    picture(browser, url, out / f"{name}-{board}.png", 38 * max(heights) + 110, end)
                    _DATA.unlink()
                    print(out / f"{name}-{board}.png", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("states", nargs="*", metavar="STATE", help=f"of {', '.join(STATES)}; all by default")
    arguments = parser.parse_args()
    draw(arguments.states or STATES, arguments.out)
