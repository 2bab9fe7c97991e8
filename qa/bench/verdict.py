"""The verdict compared with the oracle: random pipelines with a known cause, and the named cause.

`python -m qa.bench.verdict` prints the tables, with --write into docs/verdict.md, together with the table of causes.
The time is simulated and the seeds are fixed, so that the tables are reproducible. `--ticks 1 5` runs `--cases`
pipelines on simulated GPUs instead, through the collectors of the daemon, with ticks 1 s and 5 s apart. That takes
minutes, and --write keeps the result in qa/bench/results.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from tests.simulation import moments, scenario

from gpugauge.simulator.device.pipeline import Pipeline, observe
from gpugauge.simulator.scenario.load import Scenario
from gpugauge.verdict import loaders, mistakes, states
from gpugauge.verdict.causes import as_markdown
from gpugauge.verdict.evidence import Evidence
from gpugauge.verdict.judge import judge
from qa.bench import figures
from qa.bench.report import report, reported
from qa.worlds.oracle import (
    FAULTS,
    PUBLISHED_SEEDS,
    TUNING_SEEDS,
    cases,
    random_pipeline,
    right,
    without_counters,
    without_hook,
)
from qa.worlds.truth import true_cause

DOCUMENT = Path(__file__).parents[2] / "docs" / "verdict.md"
PIPELINES = 1000  # of each seed and number of faults
NO_CAUSE = "(none)"
# Of a simulated machine: number of GPUs, pid of the first training, duration in seconds.
_DEVICES, _FIRST_PID, _SECONDS = 16, 100, 80.0

EVIDENCE: dict[str, Callable[[Evidence], Evidence]] = {
    "hook and performance counters": lambda e: e,
    "hook, a GPU without performance counters": without_counters,
    "no hook": without_hook,
}


@dataclass
class Result:
    """Numbers of pipelines; `pairs` counts (true cause, named cause)."""

    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
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
        self.pairs[true or NO_CAUSE, named or NO_CAUSE] += 1
        if true is None:
            self.without += 1
            self.blamed += a_name
            return
        self.caused += 1
        self.unknown += named == "unknown"
        self.named += a_name
        self.right += a_name and right(p, str(named))


@cache
def run(seeds: range) -> dict[str, dict[int, Result]]:
    """Return the results of the verdict on random pipelines, by kind of evidence and number of faults."""
    results = {name: {faults: Result() for faults in FAULTS} for name in EVIDENCE}
    for seed in seeds:
        for case in cases(seed, PIPELINES):
            for name, knowledge in EVIDENCE.items():
                results[name][case.faults].count(case.pipeline, judge(knowledge(case.evidence)).limited_by)
    return results


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


def summary() -> str:
    """Return a table in Markdown with a row per kind of evidence, kind of seeds and number of faults."""
    lines = [f"| evidence | seeds | faults | {' | '.join(_COLUMNS)} |", "|---|---|" + "---:|" * (len(_COLUMNS) + 1)]
    for name in EVIDENCE:
        for kind, seeds in (("tuning", TUNING_SEEDS), ("published", PUBLISHED_SEEDS)):
            of_seeds = f"{kind}, {seeds[0]} to {seeds[-1]}"
            lines += [
                f"| {name} | {of_seeds} | {faults} | {' | '.join(_cells(r))} |"
                for faults, r in run(seeds)[name].items()
            ]
    return "\n".join(lines)


def matrix() -> str:
    """Return the confusion matrix of the published seeds with complete evidence: a row per true cause."""
    complete = run(PUBLISHED_SEEDS)["hook and performance counters"]
    pairs = sum((r.pairs for r in complete.values()), Counter[tuple[str, str]]())
    trues = sorted({true for true, _ in pairs}, key=lambda cause: (cause == NO_CAUSE, cause))
    nameds = sorted({named for _, named in pairs}, key=lambda cause: (cause == NO_CAUSE, cause))
    lines = ["| true \\ named | " + " | ".join(nameds) + " |", "|---|" + "---:|" * len(nameds)]
    for true in trues:
        counts = [pairs[true, named] for named in nameds]
        lines.append(f"| {true} | " + " | ".join(str(count) if count else "·" for count in counts) + " |")
    return "\n".join(lines)


TABLES = {
    "states": states.as_markdown,
    "causes": as_markdown,
    "mistakes": mistakes.as_markdown,
    "loader": loaders.as_markdown,
    "summary": summary,
    "matrix": matrix,
}


def markers(name: str) -> tuple[str, str]:
    """Return the lines before and after a table in the document."""
    return f"<!-- {name}: python -m qa.bench.verdict --write -->", f"<!-- end of {name} -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/verdict.md")
    parser.add_argument("--ticks", type=float, nargs="+", help="seconds between two ticks")
    parser.add_argument("--cases", type=int, default=480)
    options, _ = parser.parse_known_args()
    if options.ticks:
        report_collected(options.ticks, options.cases)
        if options.write:
            figures.keep("verdict-collected", reported)
        return
    if not options.write:
        print(summary())
        print(matrix())
        return
    text = DOCUMENT.read_text()
    for name, table in TABLES.items():
        begin, end = markers(name)
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n\n{table()}\n\n{end}{after}"
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
