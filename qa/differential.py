"""Compares what two commits serve: `python -m qa.differential REVISION` says where the working tree differs from it.

Each scenario runs in simulated time, in one process of each tree. Compared are the body of a scrape and the status at
six moments. Differences are shown as a diff, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOMENTS = (2, 10, 30, 65, 120, 180)  # seconds after the start
# A daemon in one process ends with the first GPU of the one, and stops with that of the other.
LEFT_OUT = {"card-lost-shift", "hanging-card", "hung-before-start", "no-driver"}
# Runs in either tree, and uses only what both have.
_RUNNER = """
import json, sys, tempfile
from pathlib import Path
from gpugauge.base import background
from gpugauge.simulator.scenario.load import load_scenario
from tests.simulation import status
from tests.golden_metrics import _VARYING
from tests.virtual import VirtualDaemon

background.START_WAIT_SECONDS = 60.0
name, moments, target = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
with tempfile.TemporaryDirectory() as folder:
    daemon = VirtualDaemon(load_scenario(name), Path(folder))
    for second in range(max(moments) + 1):
        snapshot = daemon.second()
        if second in moments:
            body = daemon.exposition.respond("text/plain", "identity", daemon.now).body.decode()
            for pattern, replacement in _VARYING:
                body = pattern.sub(replacement, body)
            (target / f"{name}-{second}.metrics").write_text(body)
            text = json.dumps(status(snapshot, daemon.history), indent=1, sort_keys=True, default=str)
            (target / f"{name}-{second}.status").write_text(text)
    daemon.close()
"""


def scenarios() -> list[str]:
    """Return the names of the shipped scenarios that run in one process."""
    names = {path.stem for path in (ROOT / "src/gpugauge/simulator/scenarios").glob("*/*.yaml")}
    return sorted(names - LEFT_OUT)


def run(tree: Path, names: list[str], target: Path) -> None:
    """Write what a tree serves into files of the target folder."""
    target.mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}", "PYTHONHASHSEED": "0", "TZ": "UTC"}
    for name in names:
        command = [sys.executable, "-c", _RUNNER, name, json.dumps(MOMENTS), str(target)]
        subprocess.run(command, cwd=tree, env=environment, check=True)


def differences(before: Path, after: Path) -> list[str]:
    """Return a diff for each file that differs, and the names of those that only one tree wrote."""
    found = [
        f"only one tree wrote {name}"
        for name in sorted({p.name for p in before.iterdir()} ^ {p.name for p in after.iterdir()})
    ]
    for path in sorted(before.iterdir()):
        if (after / path.name).exists():
            old, new = ((folder / path.name).read_text().splitlines() for folder in (before, after))
            names = (f"before/{path.name}", f"after/{path.name}")
            lines = list(difflib.unified_diff(old, new, *names, n=0, lineterm=""))
            found += ["\n".join(lines[:20])] if lines else []
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision", help="the commit to compare with")
    parser.add_argument("scenarios", nargs="*", help="all that run in one process without")
    options = parser.parse_args()
    names = options.scenarios or scenarios()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(
            ["git", "worktree", "add", "--detach", "--quiet", str(folder / "tree"), options.revision],
            cwd=ROOT,
            check=True,
        )
        try:
            run(folder / "tree", names, folder / "before")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(folder / "tree")], cwd=ROOT, check=True)
        run(ROOT, names, folder / "after")
        found = differences(folder / "before", folder / "after")
    print("\n".join(found) or f"{len(names)} scenarios: nothing differs")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
