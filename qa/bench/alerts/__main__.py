"""The score of the alert rules over labelled stories, with naive rules for comparison.

`python -m qa.bench.alerts` scores the recorded stories (qa/bench/alerts/stories), or those of a folder. --record
records all stories again first, --write writes the tables into docs/proof/alerts.md. It needs promtool.
"""

from __future__ import annotations

import argparse
import logging
import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import read, validate
from gpugauge.settings.kinds import ConfigError
from qa.bench.alerts import drawn, kept_back, tuned
from qa.bench.alerts.record import Planned, record
from qa.bench.alerts.report import failures, summary
from qa.bench.alerts.score import Rules, naive, score_all
from qa.bench.alerts.story import SHIPPED, Group, StoryError, read_all, write
from qa.bench.document import DOCS, put

GROUPS: dict[Group, tuple[Planned, ...]] = {
    "tuned": tuned.STORIES,
    "kept back": kept_back.STORIES,
    "drawn": drawn.STORIES,
}


def record_one(group: Group, planned: Planned) -> str:
    logging.disable(logging.WARNING)  # stories contain faults
    return write(record(planned, group), SHIPPED).name


def record_all(names: set[str]) -> None:
    """Record the stories with these names again, all of them without names."""
    SHIPPED.mkdir(exist_ok=True)
    with ProcessPoolExecutor() as pool:
        wanted = [(g, p) for g, stories in GROUPS.items() for p in stories if not names or p.name in names]
        for name in pool.map(record_one, *zip(*wanted, strict=True)):
            print(name, flush=True)


def tables(promtool: str, folder: Path = SHIPPED, config_file: Path | None = None) -> dict[str, str]:
    """Return the tables by name. Raises StoryError or ConfigError."""
    stories = sorted(read_all(folder), key=lambda story: (story.group != "tuned", not story.expectations, story.name))
    # The alerts about causes show which cause the alert about the load names.
    ours = Rules("gpugauge", rules.groups(validate(read(config_file, {"per_cause": True}))), names_jobs=True)
    scored = score_all(stories, [ours, *naive()], promtool)
    version = subprocess.run([promtool, "--version"], check=True, capture_output=True, text=True)
    number = re.search(r"version (\d+\.\d+)", version.stdout + version.stderr)
    date = datetime.now(timezone.utc).date()
    about = f"Figures of {date}, promtool {number[1] if number else '?'}."
    faults = failures(scored[0][1]["all"])
    listed = "\n".join(f"- {line}" for line in faults) or "Nothing was missed and nothing was a false alarm."
    return {"summary": f"{about}\n\n{summary(stories, scored)}\n\n{listed}"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m qa.bench.alerts", description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=SHIPPED, help="stories; those of the repository by default"
    )
    parser.add_argument(
        "--config.file", dest="config_file", type=Path, help="parameters of the rules, as for `gpugauge rules`"
    )
    parser.add_argument("--record", nargs="*", metavar="STORY", help="record all stories again, or these")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/proof/alerts.md")
    parser.add_argument("--promtool", default="promtool")
    options = parser.parse_args(arguments)
    if not shutil.which(options.promtool):
        parser.error(f"{options.promtool} is not installed: it comes with Prometheus; --promtool sets its path")
    if options.record is not None:
        record_all(set(options.record))

    try:
        made = tables(options.promtool, options.folder, options.config_file)
    except (StoryError, ConfigError) as error:
        parser.error(str(error))
    for name, table in made.items():
        if options.write:
            markers = f"<!-- {name}: python -m qa.bench.alerts --write -->", f"<!-- end of {name} -->"
            put(DOCS / "proof/alerts.md", *markers, table)
        else:
            print(table)


if __name__ == "__main__":
    main()
