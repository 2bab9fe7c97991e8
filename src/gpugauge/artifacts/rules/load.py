"""Alerts about the load of trainings: one for each job, and on request one for each cause."""

from __future__ import annotations

from gpugauge.artifacts.rules.alert import Alert
from gpugauge.artifacts.rules.options import Severity
from gpugauge.artifacts.rules.promql import Selectors
from gpugauge.artifacts.rules.recording import ARMED, DOMINANT, LOAD, LOW, PROBLEM, Recording
from gpugauge.artifacts.rules.texts import Texts, cases
from gpugauge.base.duration import format_duration
from gpugauge.verdict.causes import CAUSES, ON_CPU, STALLS, Cause

CPU_CAUSES = f"~{'|'.join(ON_CPU)}"
_USED = "The GPU is busy meanwhile, with kernels that run longer than necessary: that time is not used. "
_CAUSES_WITHOUT_ALERT = frozenset({*ON_CPU, STALLS, "unknown"})


def of_load(s: Selectors) -> list[Alert]:
    """Return the alerts about the load of jobs. Each job has one at most, unless there is one for each cause, too."""
    low, very = (is_low(s, f'{{level="{level}"}}') for level in ("low", "very_low"))
    levels = [_level(s, "TrainingLoadLow", low + (s.unless_job(very) if s.critical else ""), _threshold(s))]
    if s.critical is not None:
        levels.append(_level(s, "TrainingLoadVeryLow", very, f"{_percent(s.critical)}%", "critical"))
    return [*levels, *(_causes(s) if s.per_cause else [])]


def recordings(s: Selectors) -> list[Recording]:
    """Return the rules for the loads that are low now, by level."""
    levels = {"low": _below(s, s.critical)}
    if s.critical is not None:
        levels["very_low"] = _load(s, "", f"< {s.critical:.4g}")
    # A job with one of these problems has its alert.
    judged = s.and_job(ARMED) + s.settled(ARMED) + s.unless_job(PROBLEM)
    return [Recording(LOW, low + judged, {"level": level}) for level, low in levels.items()]


def is_low(s: Selectors, level: str = "") -> str:
    """Return the last low load of the jobs that had one lately: one that swings around the threshold is one alert."""
    return f"(max by ({s.job}) (last_over_time({LOW}{level}[{format_duration(3 * s.patience)}])){s.and_job(ARMED)})"


def _load(s: Selectors, matcher: str, condition: str) -> str:
    """Return the loads, in whole percents rounded down, of which the highest of some minutes fulfils a condition."""
    window = format_duration(max(s.settle, 4 * s.evaluation_interval))
    shown = f"floor({LOAD}{matcher} * 100 + 1e-06) / 100"
    return shown + s.and_job(f"(max_over_time({LOAD}{matcher}[{window}]) {condition})")


def _below(s: Selectors, least: float | None = None) -> str:
    """Return the loads that are below the threshold of their namespace, and not below `least`."""
    others = f'{{workload_namespace!~"{"|".join(s.thresholds)}"}}' if s.thresholds else ""
    own = {f'{{workload_namespace="{name}"}}': threshold for name, threshold in s.thresholds.items()}
    above = "" if least is None else f">= {least:.4g} "
    found = [
        _load(s, matcher, f"{above}< {threshold:.4g}") for matcher, threshold in ({others: s.threshold} | own).items()
    ]
    return f"({' or '.join(found)})" if own else found[0]


def _percent(share: float) -> str:
    return f"{share:.4%}".rstrip("%").rstrip("0").rstrip(".")


def _threshold(s: Selectors) -> str:
    """Return the threshold of the alert's namespace, with the sign, as a template."""
    own = {name: _percent(share) for name, share in s.thresholds.items()}
    return cases("$labels.workload_namespace", own, _percent(s.threshold)) + "%"


def _level(s: Selectors, name: str, condition: str, below: str, severity: Severity = "warning") -> Alert:
    t = Texts(s)
    own = "".join(f", {_percent(share)} % in {namespace}" for namespace, share in s.thresholds.items())
    shown = below if name == "TrainingLoadVeryLow" else f"{_percent(s.threshold)} %{own}"
    return Alert(
        name,
        condition + s.unless_job(PROBLEM),
        f"Training {t.job()} uses {t.share()} of its GPU time, less than {below}{t.main_cause()}{t.nodes(', on ')}",
        f"{t.causes()}{t.behind()}{t.advice()}{t.gain()}{t.lost_so_far()}{t.further()}{t.while_busy(_USED)}Mean over "
        f"{format_duration(s.patience)}.{t.places()}",
        s.settle,
        f"a training uses less than {shown} of its GPU time, mean over {format_duration(s.patience)}",
        severity,
    )


def alert_of_cause(cause: str) -> str:
    """Return the name of the alert about a cause."""
    return "TrainingLimitedBy" + "".join(part.capitalize() for part in cause.split("_"))


def severity_of_cause(cause: Cause) -> Severity:
    """Return `info` for a cause that was proven in simulation only, otherwise `warning`."""
    return "warning" if set(cause.proven) - {"simulated"} else "info"


def _causes(s: Selectors) -> list[Alert]:
    t, named = Texts(s), {f'"{name}"': cause for name, cause in CAUSES.items() if name not in _CAUSES_WITHOUT_ALERT}
    return [
        Alert(
            alert_of_cause(cause.name),
            f'sum by ({s.job}) ({DOMINANT}{{cause="{cause.name}"}})'
            + s.settled(f'{DOMINANT}{{cause="{cause.name}"}}')
            + s.and_job(is_low(s)),
            f"Training {t.job()} {cause.phrase}: {t.share()} of its GPU time is lost{t.nodes(', on ')}",
            f"Evidence: {cause.evidence}. What to do: {t.change(name)}. {t.gain(name)}{t.causes()}{t.further()}"
            f"{t.places()}",
            s.settle,
            f"a training {cause.phrase}: the largest cause of its low load",
            severity_of_cause(cause),
        )
        for name, cause in named.items()
    ]
