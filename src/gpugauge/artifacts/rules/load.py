"""Alerts about the load of trainings: one for each job, and on request one for each cause."""

from __future__ import annotations

from gpugauge.artifacts.rules.alert import Alert
from gpugauge.artifacts.rules.options import Parameters, Severity
from gpugauge.artifacts.rules.promql import Selectors
from gpugauge.artifacts.rules.recording import ALIVE, ARMED, DOMINANT, LOAD, PROBLEM, RANK_WORK
from gpugauge.artifacts.rules.texts import Texts
from gpugauge.base.duration import format_duration
from gpugauge.verdict.causes import CAUSES, ON_CPU, Cause

CPU_CAUSES = f"~{'|'.join(ON_CPU)}"
_CAUSES_WITHOUT_ALERT = frozenset({*ON_CPU, "unknown"})


def of_load(p: Parameters) -> list[Alert]:
    """Return the alerts about the load of jobs. Each job has one at most, unless there is one for each cause, too."""
    levels = [_level(p, "TrainingLoadLow", _below(p, p.critical), _threshold(p), "warning")]
    if p.critical is not None:
        very = _load(p, "", f"< {p.critical:.4g}")
        levels.append(_level(p, "TrainingLoadVeryLow", very, f"{_percent(p.critical)}%", "critical"))
    return [*levels, *(_causes(p) if p.per_cause else [])]


def of_ranks(p: Parameters) -> list[Alert]:
    """Return the alert about slow ranks. A low load that they cause has its own alert."""
    return [_straggler(p)] if p.per_cause else []


def is_low(p: Parameters) -> str:
    """Return the jobs that have an alert about their load."""
    s = Selectors(p)
    return f"({_below(p)} and on ({s.job}) {ARMED}{s.settled(ARMED)})"


def _load(p: Parameters, matcher: str, condition: str) -> str:
    """Return the loads whose highest value of the last minutes fulfils a condition: one low value is not enough."""
    s, window = Selectors(p), format_duration(max(p.settle, 4 * p.evaluation_interval))
    return LOAD + matcher + s.and_job(f"(max_over_time({LOAD}{matcher}[{window}]) {condition})")


def _below(p: Parameters, least: float | None = None) -> str:
    """Return the loads that are below the threshold of their namespace, and not below `least`."""
    others = f'{{workload_namespace!~"{"|".join(p.thresholds)}"}}' if p.thresholds else ""
    own = {f'{{workload_namespace="{name}"}}': threshold for name, threshold in p.thresholds.items()}
    above = "" if least is None else f">= {least:.4g} "
    found = [
        _load(p, matcher, f"{above}< {threshold:.4g}") for matcher, threshold in ({others: p.threshold} | own).items()
    ]
    return f"({' or '.join(found)})" if own else found[0]


def _percent(share: float) -> str:
    return f"{share:.4%}".rstrip("%").rstrip("0").rstrip(".")


def _threshold(p: Parameters) -> str:
    """Return the threshold of the alert's namespace, with the sign, as a template."""
    cases = "".join(
        f'{{{{ if eq $labels.workload_namespace "{name}" }}}}{_percent(share)}{{{{ else }}}}'
        for name, share in p.thresholds.items()
    )
    return f"{cases}{_percent(p.threshold)}{'{{ end }}' * len(p.thresholds)}%"


def _level(p: Parameters, name: str, condition: str, below: str, severity: Severity) -> Alert:
    s, t = Selectors(p), Texts(p)
    # A job with one of these problems has its alert.
    expr = condition + s.and_job(ARMED) + s.settled(ARMED) + s.unless_job(PROBLEM)
    shown = below if name == "TrainingLoadVeryLow" else _explained(p)
    return Alert(
        name,
        expr,
        severity,
        f"Training {t.job()} uses {t.share()} of its GPU time, less than {below}{t.main_cause()}{t.nodes(' on ')}",
        f"{t.causes()}{t.advice()}{t.gain()}{t.since(name)}Mean over {format_duration(p.patience)}.{t.places()}",
        p.settle,
        "job",
        f"a training uses less than {shown} of its GPU time, mean over {format_duration(p.patience)}",
    )


def _explained(p: Parameters) -> str:
    own = "".join(f", {_percent(share)} % in {name}" for name, share in p.thresholds.items())
    return f"{_percent(p.threshold)} %{own}"


def alert_of_cause(cause: str) -> str:
    """Return the name of the alert about a cause."""
    return "TrainingLimitedBy" + "".join(part.capitalize() for part in cause.split("_"))


def severity_of_cause(cause: Cause) -> Severity:
    """Return `info` for a cause that was proven in simulation only, otherwise `warning`."""
    return "warning" if set(cause.proven) - {"simulated"} else "info"


def _causes(p: Parameters) -> list[Alert]:
    s, t = Selectors(p), Texts(p)
    return [
        Alert(
            alert_of_cause(cause.name),
            f'sum by ({s.job}) ({DOMINANT}{{cause="{cause.name}"}})'
            + s.settled(f'{DOMINANT}{{cause="{cause.name}"}}')
            + s.and_job(is_low(p)),
            severity_of_cause(cause),
            f"Training {t.job()} loses {t.share()} of its GPU time to {cause.name}{t.nodes(' on ')}",
            f"Evidence: {cause.evidence}. What to do: {cause.advice}. {t.gain(cause.name)}{t.causes()}{t.places()}",
            p.settle,
            "job",
            f"{cause.name} is the largest cause of a low load",
        )
        for cause in CAUSES.values()
        if cause.name not in _CAUSES_WITHOUT_ALERT
    ]


def _straggler(p: Parameters) -> Alert:
    s, t = Selectors(p), Texts(p)
    # Within a run, because only its ranks do the same work; a job may contain several runs.
    run = f"{s.job}, run_id, world_size"
    slower = f"max by ({run}) ({RANK_WORK})\n/ (quantile by ({run}) (0.5, {RANK_WORK}) > 0)"
    return Alert(
        "TrainingStraggler",
        f"max by ({s.job}) ({slower}) > {p.straggler_above:g}" + s.and_job(ARMED) + s.settled(ARMED) + s.and_job(ALIVE),
        "warning",
        f"A rank of training {t.job()} works {t.value()} times as long as the median rank",
        f"{t.ranks()}Mean over {format_duration(p.patience)}.{t.places()}",
        p.settle,
        "job",
        f"the slowest rank works more than {p.straggler_above:g} times as long as the median rank",
    )
