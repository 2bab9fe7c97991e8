"""The alerting rules. Identity is a job's, or a card's: numbers and names are in annotations, never in labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpugauge.artifacts.rules_recording import ARMED, CARD_BUSY, DOMINANT, JOB, LOAD, LOST, Selectors, alive, by_job
from gpugauge.artifacts.rules_settings import Parameters, Severity, duration
from gpugauge.verdict.causes import CAUSES, Cause

# Blips of one or two evaluations are nothing to tell; the patience itself is in the windows.
_SETTLE = 300
_ON_CPU = "~no_cuda_build|no_visible_device|driver_mismatch|unsupported_arch|model_on_cpu"
_NOT_OF_LOAD = frozenset({*_ON_CPU[1:].split("|"), "unknown"})
_SLOWDOWN = "~hw_thermal_slowdown|sw_thermal_slowdown|hw_power_brake_slowdown|hw_slowdown"
_XIDS: dict[str, tuple[Severity, str]] = {
    "application": ("info", "the program did something wrong: look at its log, restart it"),
    "reset": ("warning", "the card must be reset"),
    "workflow": ("warning", "memory or NVLink needs the workflow in NVIDIA's catalogue"),
    "node": ("critical", "the machine must be looked at: off the bus, power, firmware"),
    "recovery": ("warning", "the driver wants something done: see gpu_recovery_action"),
    "other": ("info", "the error is not in the catalogue"),
}

_MATCH = (
    'workload_namespace=%q,workload_job_id=%q,workload_user=%q}{tail}" $labels.workload_namespace '
    "$labels.workload_job_id $labels.workload_user | query"
)


def _each(query: str, tail: str, text: str) -> str:
    """Write `text` for each series of the job that the query finds."""
    return '{{ range printf "' + query + "{" + _MATCH.replace("{tail}", tail) + " }}" + text + "{{ end }}"


_WHO = (
    "{{ $labels.workload_kind }} {{ $labels.workload_namespace }}{{ if $labels.workload_namespace }}/{{ end }}"
    "{{ $labels.workload_job_id }}{{ $labels.workload_user }}"
)
_CAUSES = _each(LOST, " >= 0.05", " {{ .Labels.cause }} {{ .Value | humanizePercentage }};")
# A pod's job id is its uid: people know it by its name. Where there is a job, its processes are of any user.
_PROGRAMS = (
    'Programs:{{ range printf "count by (workload_pod, workload_command) (gpu_process_host_info'
    '{workload_namespace=%q,workload_job_id=%q,workload_user=~%q})" $labels.workload_namespace '
    '$labels.workload_job_id (printf "%s.*" $labels.workload_user) | query }}'
    " {{ .Labels.workload_pod }} {{ .Labels.workload_command }};{{ end }}"
)
_NODE = '{{ range printf "gpu_up{uuid=%q}" $labels.uuid | query }} {{ .Labels.instance }}{{ end }}'


@dataclass(frozen=True)
class Alert:
    """An alerting rule; `hold` is the pause in evaluations that `for` asks for, seconds."""

    name: str
    expr: str
    severity: Severity
    summary: str
    description: str
    hold: int = 0

    def as_dict(self, p: Parameters) -> dict[str, object]:
        """Return the rule as Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": self.expr,
            **({"for": duration(self.hold)} if self.hold else {}),
            "keep_firing_for": duration(p.keep_firing),
            "labels": {"severity": p.severities.get(self.name, self.severity)},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{p.runbook}#{self.name.lower()}",
            },
        }


def _by_process(expr: str) -> str:
    """Leave one series for each process, whatever else the scrape put on it."""
    return f"max by (process) ({expr})"


def of_jobs(p: Parameters) -> list[Alert]:
    """Return the alerts whose identity is a job."""
    return [*_load(p), *_causes(p), *_idle(p), *_on_cpu(p), *_progress(p), _memory(p), _unused(p)]


def _load(p: Parameters) -> list[Alert]:
    levels: list[tuple[str, float, Severity]] = [
        ("TrainingLoadLow", p.info_below, "info"),
        ("TrainingLoadVeryLow", p.warning_below, "warning"),
    ]
    return [
        Alert(
            name,
            f"{LOAD} < {below:g}\nand on ({JOB}) {ARMED}",
            severity,
            f"Training {_WHO} uses {{{{ $value | humanizePercentage }}}} of its GPU time",
            f"Mean over {duration(p.patience)}, below {below:.0%}. Lost to:{_CAUSES} {_PROGRAMS}",
            _SETTLE,
        )
        for name, below, severity in levels
    ]


def alert_of_cause(cause: str) -> str:
    """Return the name of the alert about a main cause."""
    return "TrainingLimitedBy" + "".join(part.capitalize() for part in cause.split("_"))


def severity_of_cause(cause: Cause) -> Severity:
    """A cause that was never seen outside of a simulation informs and no more."""
    return "warning" if set(cause.proven) - {"simulated"} else "info"


def _causes(p: Parameters) -> list[Alert]:
    low = f"and on ({JOB}) {LOAD} < {p.warning_below:g}\nand on ({JOB}) {ARMED}"
    return [
        Alert(
            alert_of_cause(cause.name),
            f'sum by ({JOB}) ({DOMINANT}{{cause="{cause.name}"}})\n{low}',
            severity_of_cause(cause),
            f"Training {_WHO} loses {{{{ $value | humanizePercentage }}}} of its GPU time to {cause.name}",
            f"Seen: {cause.evidence}. Advice: {cause.advice}. Lost to:{_CAUSES} {_PROGRAMS}",
            _SETTLE,
        )
        for cause in CAUSES.values()
        if cause.name not in _NOT_OF_LOAD
    ]


def _idle(p: Parameters) -> list[Alert]:
    s = Selectors(p)
    held = by_job("max", f"rate({s('training_seconds_total', p.idle_patience, state='held_idle')})")
    return [
        Alert(
            "GpuHeldIdle",
            f"{held} >= 0.9",
            "warning",
            f"{_WHO} holds GPUs and does not use them",
            f"Idle for {{{{ $value | humanizePercentage }}}} of the last {duration(p.idle_patience)}. {_PROGRAMS}",
            _SETTLE,
        )
    ]


def _on_cpu(p: Parameters) -> list[Alert]:
    s = Selectors(p)
    # The exporter names one of these causes only where the host has a GPU.
    on_cpu = by_job("max", _by_process(f"max_over_time({s('training_limited_by', p.patience, cause=_ON_CPU)})"))
    share = by_job("max", f"rate({s('training_seconds_total', p.patience, state='training_on_cpu')})")
    # Each process once, and only where the machine has a card that answers.
    build = f"max_over_time({s('gpu_process_host_info', p.patience, torch_build='cpu')})"
    cpu_build = _by_process(f"{build} and on (instance) max_over_time({s('gpu_up', p.patience)}) == 1")
    cpus = _by_process(f"rate({s('gpu_process_cpu_seconds_total', p.patience, part='process')})")
    busy = by_job("sum", f"({cpus} and on (process) {cpu_build})")
    hooked = by_job("max", _by_process(f"max_over_time({s('torch_process_info', p.patience)})"))
    return [
        Alert(
            "TrainingOnCpu",
            f"{share} >= 0.8\nand on ({JOB}) {on_cpu}",
            "warning",
            f"Training {_WHO} runs on the CPU while a GPU is there",
            f"On the CPU for {{{{ $value | humanizePercentage }}}} of the last {duration(p.patience)}. {_PROGRAMS}",
            _SETTLE,
        ),
        Alert(
            "TorchCpuBuildBusy",
            f"{busy} >= 1\nunless on ({JOB}) {hooked}",
            "info",
            f"{_WHO} computes with a CPU build of PyTorch on a machine with GPUs",
            f"{{{{ $value | humanize }}}} CPUs busy for {duration(p.idle_patience)}; perhaps no training. {_PROGRAMS}",
            p.idle_patience,
        ),
    ]


def _progress(p: Parameters) -> list[Alert]:
    s = Selectors(p)
    stalled = _by_process(f"max_over_time({s('training_state', p.lookback, state='stalled')})") + " == 1"
    there = f" > 0\nand on ({JOB}) {alive(p)}"
    memory = s("gpu_process_memory_used_bytes", p.lookback)
    of_process = f"max by (process, uuid) (last_over_time({memory})) > bool 0"
    cards = _by_process(f"({of_process}) * on (uuid) group_left () {CARD_BUSY}") + " >= 0.9"
    return [
        Alert(
            "TrainingStalled",
            by_job("max", f"({stalled})") + there,
            "warning",
            f"Training {_WHO} makes no steps any more",
            f"No step or batch for more than {duration(p.stall_patience)}. {_PROGRAMS}",
            p.stall_patience,
        ),
        Alert(
            "TrainingBusyWithoutProgress",
            by_job("max", f"({stalled} and on (process) {cards})") + there,
            "warning",
            f"Training {_WHO} keeps its GPUs busy and makes no steps",
            "The cards are more than 90 % busy and no step ends: most likely a collective that waits for a lost rank.",
            p.stall_patience,
        ),
    ]


def _memory(p: Parameters) -> Alert:
    s = Selectors(p)
    name = "torch_memory_ooms_total"
    # A process that begins with an error has nothing to rise from.
    first = f"{s(name)} > 0 unless on (process) count_over_time({s(name, 3600)} offset {duration(p.patience)})"
    rise = _by_process(f"increase({s(name, p.patience)}) > 0 or ({first})")
    return Alert(
        "TrainingOutOfMemory",
        by_job("sum", rise),
        "warning",
        f"Training {_WHO} ran out of GPU memory",
        f"{{{{ $value | humanize }}}} out-of-memory errors in {duration(p.patience)}, caught ones included.",
    )


def _unused(p: Parameters) -> Alert:
    s = Selectors(p)
    given = f"max by (uuid, {JOB}) ({s('gpu_allocation_info')})"
    keyed = f'label_replace({given}, "workload_user", "", "workload_job_id", ".+")'
    busy = f"max by (uuid) (rate({s('gpu_busy_seconds_total', p.idle_patience, engine='gpu')}))"
    seen = f"max by (uuid) (rate({s('gpu_observed_seconds_total', p.idle_patience, engine='gpu')}))"
    return Alert(
        "AllocatedGpuUnused",
        f"count by ({JOB}) (\n  {keyed}\n  and on (uuid) ({busy} / ({seen} >= 0.8) < 0.01)\n)",
        "info",
        f"{_WHO} was given GPUs that it does not use",
        f"{{{{ $value }}}} of its GPUs were idle for {duration(p.idle_patience)}.",
        _SETTLE,
    )


def of_cards(p: Parameters) -> list[Alert]:
    """Return the alerts whose identity is a card."""
    s = Selectors(p)
    held = f"max by (uuid, reason) (rate({s('gpu_clocks_event_seconds_total', p.patience, reason=_SLOWDOWN)}))"
    return [
        Alert(
            "GpuLost",
            f"min by (uuid) ({s('gpu_up')}) == 0",
            "critical",
            "GPU {{ $labels.uuid }} does not answer",
            f"On{_NODE}: lost, hanging or gone.",
            120,
        ),
        Alert(
            "GpuThrottled",
            f"max by (uuid) ({held}) >= 0.2\nand on (uuid) {CARD_BUSY} >= 0.2",
            "warning",
            "GPU {{ $labels.uuid }} lowers its clocks for heat or a power brake",
            f"On{_NODE}: for {{{{ $value | humanizePercentage }}}} of the last {duration(p.patience)}.",
            _SETTLE,
        ),
        *(_xid(p, name, severity, what) for name, (severity, what) in _XIDS.items()),
    ]


def _xid(p: Parameters, name: str, severity: Severity, what: str) -> Alert:
    errors = Selectors(p)("gpu_xid_errors_total", p.patience, **{"class": name})
    return Alert(
        f"GpuXid{name.capitalize()}",
        f"max by (uuid) (increase({errors})) > 0",
        severity,
        f"GPU {{{{ $labels.uuid }}}} had Xid errors of the class {name}",
        f"On{_NODE}: {{{{ $value | humanize }}}} in {duration(p.patience)}; {what}.",
    )


def of_exporters(p: Parameters) -> list[Alert]:
    """Return the alerts whose identity is an exporter."""
    s = Selectors(p)
    driver = f"max by (instance) ({s('gpugauge_driver_up')}) == 0"
    age = f"time() - max by (instance) ({s('gpugauge_snapshot_timestamp_seconds')})"
    return [
        Alert(
            "ExporterBlind",
            f"({driver})\nor on (instance) ({age} > {2 * p.lookback})",
            "warning",
            "gpugauge on {{ $labels.instance }} does not see the GPUs",
            "The driver does not answer it, or it puts no new values together.",
            _SETTLE,
        ),
        Alert(
            "ExporterDown",
            f"max by (instance) ({s.up()}) == 0",
            "warning",
            "gpugauge on {{ $labels.instance }} cannot be scraped",
            "Nothing is known of its GPUs; alerts about them stay as they were for a while and then resolve.",
            2 * _SETTLE,
        ),
    ]


BUILDERS: dict[str, Callable[[Parameters], list[Alert]]] = {
    "gpugauge-cards": of_cards,
    "gpugauge-jobs": of_jobs,
    "gpugauge-exporters": of_exporters,
}
