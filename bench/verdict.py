"""The verdict compared with the oracle: random pipelines with a known cause, and the named cause.

`python -m bench.verdict` prints the tables, with --write into docs/verdict.md, together with the table of causes.
The time is simulated and the seed is fixed, so that the tables are reproducible. `--ticks 1 5` runs `--cases` pipelines
on simulated GPUs instead, through the collectors of the daemon, with ticks 1 s and 5 s apart. That takes minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tests.simulation import moments, scenario
from tests.verdict.oracle import evidence, random_pipeline, right, without_counters

from gpugauge.simulator.device.pipeline import Pipeline, true_cause
from gpugauge.simulator.scenario.load import Scenario
from gpugauge.verdict.causes import as_markdown
from gpugauge.verdict.evidence import Evidence
from gpugauge.verdict.judge import judge

DOCUMENT = Path(__file__).parent.parent / "docs" / "verdict.md"
PIPELINES, SEED = 1000, 5
MIN_NAMED = 100  # named causes; the spread of fewer is not significant
OTHER_SEEDS = range(10, 20)  # the figures must not depend on the seed
NO_CAUSE = "(none)"
# Of a simulated machine: number of GPUs, pid of the first training, duration in seconds.
_DEVICES, _FIRST_PID, _SECONDS = 16, 100, 80.0


def _without_hook(e: Evidence) -> Evidence:
    """Return the evidence from /proc and the driver about the same minute."""
    return replace(
        e,
        inside=False,
        phase=None,
        steps=0.0,
        steps_ever=0.0,
        batches=0.0,
        since_progress=None,
        data_wait=None,
        data_wait_exposed=None,
        local_work=None,
        pinned=None,
        parameters={},
        fp32_only=None,
        retries=0.0,
    )


EVIDENCE: dict[str, Callable[[Evidence], Evidence]] = {
    "hook and performance counters": lambda e: e,
    "hook, a GPU without performance counters": without_counters,
    "no hook": _without_hook,
}


@dataclass
class Result:
    """Numbers of named causes; `pairs` counts (true cause, named cause)."""

    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    named: int = 0
    right: int = 0
    missed: int = 0  # pipelines with a cause, and no named cause
    false_alarms: int = 0  # pipelines without a cause, and a wrong named cause
    lost: float = 0.0
    unknown: float = 0.0

    @property
    def share(self) -> float | None:
        """Share of correct named causes, 0 to 1."""
        return self.right / self.named if self.named else None


def run(knowledge: Callable[[Evidence], Evidence], number: int = PIPELINES, seed: int = SEED) -> Result:
    """Return the result of the verdict on random pipelines."""
    r, result = random.Random(seed), Result()
    for _ in range(number):
        p = random_pipeline(r)
        verdict, true = judge(knowledge(evidence(p))), true_cause(p)
        _count(result, p, true, verdict.limited_by)
        result.lost += sum(verdict.causes.values())
        result.unknown += verdict.causes.get("unknown", 0.0)
    return result


def _count(result: Result, p: Pipeline, true: str | None, named: str | None) -> None:
    result.pairs[true or NO_CAUSE, named or NO_CAUSE] += 1
    if named is None or named == "unknown":
        result.missed += true is not None
        return
    result.named += 1
    good = right(p, named)
    result.right += good
    result.false_alarms += true is None and not good


def collected(model: str, tick: float, number: int, seed: int = SEED) -> Result:
    """Return the result of collectors and verdict on random pipelines, each on its own GPU, after 80 s."""
    r, result = random.Random(seed), Result()
    for _ in range(0, number, _DEVICES):
        pipelines = [random_pipeline(r) for _ in range(_DEVICES)]
        with tempfile.TemporaryDirectory() as folder:
            *_, moment = moments(_machine(model, pipelines), Path(folder), _SECONDS, steps=(tick,))
        for pid, p in enumerate(pipelines, _FIRST_PID):
            _count(result, p, true_cause(p), moment.causes[pid])
            result.lost += sum(moment.shares[pid].values())
            result.unknown += moment.shares[pid].get("unknown", 0.0)
    return result


def _machine(model: str, pipelines: Sequence[Pipeline]) -> Scenario:
    """Return a machine with a training per pipeline, and with the other processes on its GPU."""
    lines = [f"gpus: {{model: {model}, count: {len(pipelines)}}}", "processes:"]
    for i, p in enumerate(pipelines):
        where = f"gpus: [{i}], memory: 20GiB"
        lines.append(f"  - {{pid: {_FIRST_PID + i}, {where}, cgroup: /job{i}, pipeline: {json.dumps(asdict(p))}}}")
        if p.other:
            lines.append(f"  - {{pid: {_FIRST_PID + _DEVICES + i}, {where}, load: {p.other}}}")
    return scenario("\n".join(lines))


def print_collected(ticks: Sequence[float], number: int) -> None:
    """Print a row per model of GPU and interval of ticks."""
    for model in ("h100", "a100"):
        for tick in ticks:
            r = collected(model, tick, number)
            share = "-" if r.share is None else f"{r.share:.1%}"
            print(f"{model}, a tick every {tick:g} s: named {r.named}, correct {share}, not named {r.missed}", end=", ")
            print(f"healthy, but named {r.false_alarms}, unknown {r.unknown / r.lost:.1%}", flush=True)


def summary() -> str:
    """Return a table in Markdown with a row per kind of evidence."""
    columns = ["evidence", "named", "of these correct", "correct, with ten other seeds"]
    columns += ["not named", "healthy, but named", "unknown"]
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    for name, knowledge in EVIDENCE.items():
        r = run(knowledge)
        others = sorted(share for seed in OTHER_SEEDS if (share := run(knowledge, seed=seed).share) is not None)
        others = others if r.named >= MIN_NAMED else []
        right = "-" if r.share is None else f"{r.share:.1%}"
        spread = f"{others[0]:.1%} to {others[-1]:.1%}" if others else "-"
        unknown = f"{r.unknown / r.lost:.1%}" if r.lost else "-"
        lines.append(f"| {name} | {r.named} | {right} | {spread} | {r.missed} | {r.false_alarms} | {unknown} |")
    return "\n".join(lines)


def matrix() -> str:
    """Return the confusion matrix with complete evidence in Markdown: a row per true cause."""
    pairs = run(lambda e: e).pairs
    trues = sorted({true for true, _ in pairs}, key=lambda cause: (cause == NO_CAUSE, cause))
    nameds = sorted({named for _, named in pairs}, key=lambda cause: (cause == NO_CAUSE, cause))
    lines = ["| true \\ named | " + " | ".join(nameds) + " |", "|---|" + "---:|" * len(nameds)]
    for true in trues:
        counts = [pairs[true, named] for named in nameds]
        lines.append(f"| {true} | " + " | ".join(str(count) if count else "·" for count in counts) + " |")
    return "\n".join(lines)


TABLES = {"causes": as_markdown, "summary": summary, "matrix": matrix}


def markers(name: str) -> tuple[str, str]:
    """Return the lines before and after a table in the document."""
    return f"<!-- {name}: python -m bench.verdict --write -->", f"<!-- end of {name} -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/verdict.md")
    parser.add_argument("--ticks", type=float, nargs="+", help="seconds between two ticks")
    parser.add_argument("--cases", type=int, default=PIPELINES)
    options, _ = parser.parse_known_args()
    if options.ticks:
        print_collected(options.ticks, options.cases)
        return
    if not options.write:
        print(f"# {PIPELINES} random pipelines: named causes, and how many are correct")
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
