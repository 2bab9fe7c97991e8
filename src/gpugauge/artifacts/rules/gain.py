"""The recording rules for what the steps of a job gain without a cause. Texts of alerts read them."""

from __future__ import annotations

from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.promql import Selectors
from gpugauge.artifacts.rules.recording import (
    DOMINANT,
    GAIN_LABELS,
    GAIN_TEXTS,
    NEXT_LIMIT,
    SPEEDUP,
    SPEEDUP_BOUND,
    Recording,
)

# The bounds by their part of the metric's name, with the aggregation over the processes of a job.
_BOUNDS = {"lower": "min", "upper": "max"}


def of_gains(p: Parameters) -> list[Recording]:
    """Return the rules for the gain of each job without each cause, its bounds, and the limit that comes next."""
    s = Selectors(p)
    cause = f"{s.job}, cause"
    # Where the gain of a process that the cause limits is not known, that of the job is not known either.
    limited = f"max by ({s.keys('process', 'cause')}) ({s('training_limited_by')} == 1)"
    without = f"({limited}\n  unless on ({s.keys('process', 'cause')}) {_mean(p)})"
    # A job is as fast as its slowest process, so the smallest gain is that of the job.
    gain = f"{s.by_job('min', _mean(p), 'cause')}\nunless on ({cause}) {s.by_job('count', without, 'cause')}"
    after = s.by_job("sum", f"count_over_time({s('training_expected_speedup_info', p.patience)})", "cause", "next")
    known = f"\nand on ({cause}) {SPEEDUP}"
    return [
        Recording(SPEEDUP, gain),
        *(
            Recording(SPEEDUP_BOUND, s.by_job(operator, _mean(p, f"_{bound}"), "cause") + known, {"bound": bound})
            for bound, operator in _BOUNDS.items()
        ),
        Recording(NEXT_LIMIT, f"topk by ({cause}) (1, {after}) > bool 0{known}"),
        *([Recording(GAIN_TEXTS, _texts(p))] if p.engine == "grafana" else []),
    ]


def _mean(p: Parameters, part: str = "") -> str:
    s = Selectors(p)
    gain = s(f"training_expected_speedup{part}_ratio", p.patience)
    return f"max by ({s.keys('process', 'cause')}) (avg_over_time({gain}))"


def _texts(p: Parameters) -> str:
    """Return 1 for each job, with the gain without its largest cause in labels."""
    s = Selectors(p)
    largest = f"and on ({s.job}, cause) {DOMINANT}"
    series = (SPEEDUP, *(f'{SPEEDUP_BOUND}{{bound="{bound}"}}' for bound in _BOUNDS))
    first, *others = (
        f'count_values by ({s.job}) ("{label}", round({value} {largest}, 0.1))'
        for label, value in zip(GAIN_LABELS, series, strict=False)
    )
    joined = zip(GAIN_LABELS[1:], (*others, f"({NEXT_LIMIT} {largest})"), strict=True)
    return first + "".join(f"\n* on ({s.job}) group_left ({label}) {expr}" for label, expr in joined)
