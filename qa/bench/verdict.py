"""The tables of the verdict's documents, and the verdict through the collectors of the daemon.

`python -m qa.bench.verdict --write` writes the tables of states, causes, mistakes and loaders into the documents.
`--ticks 1 5` runs `--cases` random pipelines on simulated GPUs, with ticks 1 s and 5 s apart, and compares the named
cause with the true one. That takes minutes, and --write keeps the result in qa/bench/results.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.simulation import moments, scenario

from gpugauge.simulator.device.pipeline import Pipeline, observe
from gpugauge.simulator.scenario.load import Scenario
from gpugauge.verdict import causes, loaders, mistakes, states
from qa.bench import figures
from qa.bench.report import report, reported
from qa.worlds.oracle import FAULTS, PUBLISHED_SEEDS, random_pipeline, right
from qa.worlds.truth import true_cause

DOCUMENTS = Path(__file__).parents[2] / "docs"
# Of a simulated machine: number of GPUs, pid of the first training, duration in seconds.
_DEVICES, _FIRST_PID, _SECONDS = 16, 100, 80.0


@dataclass
class Result:
    """Numbers of pipelines."""

    caused: int = 0  # pipelines with a cause
    named: int = 0  # of these
    right: int = 0  # of the named
    unknown: int = 0  # pipelines with a cause that are limited by "unknown"
    without: int = 0  # pipelines without a cause
    blamed: int = 0  # of these, with a named cause

    @property
    def share(self) -> float | None:
        """Share of correct names of pipelines with a cause, 0 to 1."""
        return self.right / self.named if self.named else None

    def count(self, p: Pipeline, named: str | None) -> None:
        """Count the name of a pipeline."""
        true, a_name = true_cause(p), named is not None and named != "unknown"
        if true is None:
            self.without += 1
            self.blamed += a_name
            return
        self.caused += 1
        self.unknown += named == "unknown"
        self.named += a_name
        self.right += a_name and right(p, str(named))


def collected(model: str, tick: float, number: int) -> Result:
    """Return the result of collectors and verdict on random pipelines, each on its own GPU, after 80 s."""
    r, result = random.Random(PUBLISHED_SEEDS[0]), Result()
    for _ in range(0, number, _DEVICES):
        pipelines = [random_pipeline(r, r.choice(FAULTS)) for _ in range(_DEVICES)]
        with tempfile.TemporaryDirectory() as folder:
            *_, moment = moments(_machine(model, pipelines), Path(folder), _SECONDS, steps=(tick,))
        for pid, p in enumerate(pipelines, _FIRST_PID):
            result.count(p, moment.causes[pid])
    return result


def _machine(model: str, pipelines: Sequence[Pipeline]) -> Scenario:
    """Return a machine with a training per pipeline, and with the other processes on its GPU."""
    lines = [f"gpus: {{model: {model}, count: {len(pipelines)}}}", "processes:"]
    for i, p in enumerate(pipelines):
        where = f"gpus: [{i}], memory: 20GiB"
        lines.append(f"  - {{pid: {_FIRST_PID + i}, {where}, cgroup: /job{i}, pipeline: {json.dumps(asdict(p))}}}")
        if p.other:
            other = min(p.other, 1.0 - observe(p).own_busy)
            lines.append(f"  - {{pid: {_FIRST_PID + _DEVICES + i}, {where}, load: {other:.6f}}}")
    return scenario("\n".join(lines))


def report_collected(ticks: Sequence[float], number: int) -> None:
    """Report a row per model of GPU and interval of ticks."""
    command = f"python -m qa.bench.verdict --ticks {' '.join(f'{tick:g}' for tick in ticks)} --cases {number}"
    rows: list[dict[str, str]] = []
    found: dict[str, str] = {}
    for model in ("h100", "a100"):
        for tick in ticks:
            result = collected(model, tick, number)
            cells = dict(zip(_COLUMNS, _cells(result), strict=True))
            rows.append({"GPU": model.upper(), "tick s": f"{tick:g}", **cells})
            found |= {f"{model}-named": str(result.named), f"{model}-caused": str(result.caused)}
            found[f"{model}-right"] = f"{100 * (result.share or 0.0):.1f}"
    report("Pipelines on simulated GPUs, through the collectors", rows, command, name="collected", figures=found)


_COLUMNS = (
    *("with a cause", "named", "of these correct", "not named", "`unknown`"),
    *("without a cause", "of these named"),
)


def _cells(r: Result) -> tuple[str, ...]:
    share = "-" if r.share is None else f"{r.share:.1%}"
    blamed = f"{r.blamed} ({r.blamed / r.without:.1%})" if r.without else "-"
    missed = r.caused - r.named - r.unknown
    return (*map(str, (r.caused, r.named)), share, *map(str, (missed, r.unknown, r.without)), blamed)


# By document, its generated tables.
TABLES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "verdict.md": {"states": states.as_markdown, "causes": causes.as_markdown},
    "advice.md": {"mistakes": mistakes.as_markdown, "loader": loaders.as_markdown},
}


def markers(name: str) -> tuple[str, str]:
    """Return the lines before and after a table in a document."""
    return f"<!-- {name}: python -m qa.bench.verdict --write -->", f"<!-- end of {name} -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables into the documents")
    parser.add_argument("--ticks", type=float, nargs="+", help="seconds between two ticks")
    parser.add_argument("--cases", type=int, default=480)
    options, _ = parser.parse_known_args()
    if options.ticks:
        report_collected(options.ticks, options.cases)
        if options.write:
            figures.keep("verdict-collected", reported)
        return
    for path, tables in TABLES.items() if options.write else ():
        document = DOCUMENTS / path
        text = document.read_text()
        for name, table in tables.items():
            begin, end = markers(name)
            before, _, rest = text.partition(begin)
            _, _, after = rest.partition(end)
            text = f"{before}{begin}\n\n{table()}\n\n{end}{after}"
        document.write_text(text)


if __name__ == "__main__":
    main()
