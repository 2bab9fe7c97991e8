"""The expected gain compared with the oracle: random pipelines, and the same pipelines without a cause.

The time is simulated and the seeds are fixed, so that the table is reproducible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from gpugauge.node.node import Gain
from gpugauge.verdict.gain import gains
from gpugauge.verdict.judge import judge
from qa.bench import figures
from qa.bench.report import report
from qa.worlds.oracle import GAIN_SEEDS, Case, cases
from qa.worlds.truth import MIN_SPEEDUP, speedups

PIPELINES = 25  # of each seed and number of faults: 1,000 in all
_NO_EFFECT = 1.02  # a true gain below it


@dataclass(frozen=True, slots=True)
class Advised:
    """A published gain, and the true one."""

    cause: str
    gain: Gain
    truth: float

    @property
    def error(self) -> float:
        """The relative error of the expected gain."""
        return abs(self.gain.expected / self.truth - 1.0)

    @property
    def bounded(self) -> bool:
        """Whether the truth is within the bounds, which are rounded."""
        return self.gain.lower - 0.001 <= self.truth <= self.gain.upper + 0.001


def advised(found: Sequence[Case]) -> list[Advised]:
    """Return the gains of these cases that are published. Causes without a pipeline have none."""
    result = []
    for case in found:
        truth = speedups(case.pipeline)
        result += [
            Advised(cause, gain, truth[cause]) for cause, gain in gains(case.evidence, judge(case.evidence)).items()
        ]
    return result


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def bounded(found: Sequence[Advised]) -> float:
    """Return the share of truths within the bounds."""
    return sum(one.bounded for one in found) / len(found)


@cache
def published() -> tuple[Case, ...]:
    """Return the 1,000 pipelines of the published figures."""
    return tuple(case for seed in GAIN_SEEDS for case in cases(seed, PIPELINES))


def _row(name: str, found: Sequence[Advised], possible: int) -> dict[str, object]:
    errors = [one.error for one in found]
    return {
        "cause": name,
        "removal gains a tenth": possible,
        "gains published": len(found),
        "median error": f"{quantile(errors, 0.5):.1%}",
        "95th percentile": f"{quantile(errors, 0.95):.1%}",
        "truth within the bounds": f"{bounded(found):.1%}",
        "without effect": sum(one.truth < _NO_EFFECT for one in found),
        "slower": sum(one.truth < 1.0 for one in found),
    }


def main() -> None:
    found = advised(published())
    true = [dict(speedups(case.pipeline)) for case in published()]
    rows = []
    for cause in sorted({one.cause for one in found}):
        possible = sum(gain[cause] >= MIN_SPEEDUP for gain in true)
        rows.append(_row(f"`{cause}`", [one for one in found if one.cause == cause], possible))
    rows.append(_row("all", found, sum(int(str(row["removal gains a tenth"])) for row in rows)))
    report("Expected and true gain", rows, "python -m qa.bench.gain", name="gain")


if __name__ == "__main__":
    figures.run("gain", main)
