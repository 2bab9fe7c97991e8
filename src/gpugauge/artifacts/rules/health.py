"""Alerts about faults of GPUs. They fire until the fault is repaired, also when it is older than the first scrape.

They carry cluster, node, uuid and index of the GPU and the Xid code as labels, so that their texts need no query.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpugauge.artifacts.rules.alert import Alert
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.promql import Selectors, with_cluster
from gpugauge.artifacts.rules.recording import DEVICE_BUSY, Recording
from gpugauge.artifacts.rules.texts import Texts
from gpugauge.base.duration import format_duration
from gpugauge.faults.table import (
    FAULTS,
    MANY_RETIRED_PAGES,
    NEAR_SLOWDOWN_CELSIUS,
    NVLINK_CORRECTED,
    NVLINK_NEVER,
    NVLINK_PER_SECOND,
    SLOWDOWNS,
    SLOWED_SHARE,
    UNDER_LOAD,
)

# Index and first Xid error of each GPU, to be joined on the labels of `gpu`.
IDENTITY = "gpugauge:gpu:info"
WHERE = "GPU {{ $labels.index }} ({{ $labels.uuid }}) on {{ $labels.instance }}"
_XID = "Xid {{ $labels.xid }}{{ if $labels.xid_name }} ({{ $labels.xid_name }}){{ end }}"
_AFTER_XID = "{{ if $labels.xid }} First error: " + _XID + ".{{ end }}"

# By class: what is wrong and what to do, and whether the fault lasts until a repair.
_XIDS: dict[str, tuple[str, bool]] = {
    "application": ("An error of the program: read its log and restart it.", False),
    "reset": ("End the processes on the GPU and reset it.", True),
    "workflow": ("Memory or NVLink needs the workflow in NVIDIA's catalogue of Xid errors.", True),
    "node": ("Inspect the machine: the GPU is off the bus, or power or firmware failed.", True),
    "other": ("NVIDIA's catalogue of Xid errors may say what to do.", False),
}


def _any(labels: Iterable[str]) -> str:
    """Return a matcher of any of these values of a label."""
    return "~" + "|".join(labels)


def _alert(name: str, expr: str, summary: str, description: str, hold: int = 0, *, when: str) -> Alert:
    """Return the alert about a fault of the table."""
    fault = FAULTS[name]
    return Alert(name, expr, fault.severity, summary, description, hold, action=fault.action, when=when)


def gpu(p: Parameters) -> str:
    """Return the labels that identify a GPU. Simulated GPUs of two machines have the same uuid."""
    return with_cluster(p, "instance", "uuid")


def recordings(p: Parameters) -> list[Recording]:
    """Return the rule that the alerts join: one series for each GPU."""
    s, keys = Selectors(p), gpu(p)
    index = f"topk by ({keys}) (1, max by ({keys}, index) ({s('gpu_info')}))"
    errors = f"max by ({keys}, xid, xid_name) ({s('gpu_xid_unrepaired_timestamp_seconds')})"
    first = f"(bottomk by ({keys}) (1, {errors}) > bool 0)"
    joined = f"{index}\n* on ({keys}) group_left (xid, xid_name)\n{first}"
    return [Recording(IDENTITY, f"({joined})\nor on ({keys})\n{index}")]


def _of_gpu(p: Parameters, condition: str, *labels: str) -> str:
    """Return a condition that has one series for each GPU, with its index and the further `labels` of IDENTITY."""
    return f"(\n{condition}\n)\n* on ({gpu(p)}) group_left ({', '.join(('index', *labels))}) {IDENTITY}"


def alerts(p: Parameters) -> list[Alert]:
    """Return the alerts."""
    states = [_lost(p), _reset(p), _row_remap(p), _ecc(p), _nvlink(p), _pcie(p), _hot(p), _throttled(p)]
    return [*states, *(_xid(p, name) for name in _XIDS)]


def _lost(p: Parameters) -> Alert:
    return _alert(
        "GpuLost",
        _of_gpu(p, f"min by ({gpu(p)}) ({Selectors(p)('gpu_up')}) == 0", "xid", "xid_name"),
        f"{WHERE} does not answer",
        f"It is lost, its driver calls hang, or the driver does not list it.{Texts(p).reason_down()}{_AFTER_XID} "
        f"Drain the machine, and reset the GPU or reboot.{Texts(p).pods()}",
        120,
        when="a GPU does not answer",
    )


def _throttled(p: Parameters) -> Alert:
    s = Selectors(p)
    counted = s.rate("gpu_clocks_event_seconds_total", p.patience, reason=_any(SLOWDOWNS))
    # Drivers before R575 count no seconds of these reasons.
    sampled = f"avg_over_time({s('gpu_clocks_event_active', p.patience, reason=_any(SLOWDOWNS))})"
    slowed = f"{counted}\n  or on ({gpu(p)}, reason) {sampled}"
    busy = f"on ({with_cluster(p, 'uuid')}) {DEVICE_BUSY} >= {UNDER_LOAD:g}"
    return _alert(
        "GpuThrottled",
        _of_gpu(p, f"max by ({gpu(p)}) (\n  ({slowed}) >= {SLOWED_SHARE:g}\n)\nand {busy}"),
        f"{WHERE} lowers its clocks because of heat or a power brake",
        f"For at least a fifth of the last {format_duration(p.patience)}. "
        f"Check fans, air flow and power.{Texts(p).pods()}",
        p.settle,
        when="a busy GPU lowers its clocks for a fifth of the time because of heat or a power brake",
    )


def _reset(p: Parameters) -> Alert:
    s = Selectors(p)
    action = f'label_replace({s("gpu_recovery_action", action="!none")} == 1, "reason", "$1", "action", "(.*)")'
    pending = [
        f'label_replace(max by ({gpu(p)}) ({s(metric)}) == 1, "reason", "{reason}", "", "")'
        for metric, reason in (
            ("gpu_remapped_rows_pending", "row_remap_pending"),
            ("gpu_retired_pages_pending", "page_retirement_pending"),
        )
    ]
    wanted = f"\nor on ({gpu(p)})\n".join([f"max by ({gpu(p)}, reason) ({action})", *pending])
    return _alert(
        "GpuNeedsReset",
        _of_gpu(p, wanted, "xid", "xid_name"),
        f"{WHERE} needs a reset: {{{{ $labels.reason }}}}",
        "The driver requires it, or memory that had errors is replaced at the next reset."
        f"{_AFTER_XID} End the processes on the GPU and reset it, or reboot the machine.{Texts(p).pods()}",
        when="the driver requires a reset, or faulty memory is replaced at the next one",
    )


def _row_remap(p: Parameters) -> Alert:
    s = Selectors(p)
    failed = f"max by ({gpu(p)}) ({s('gpu_remapped_rows_failure')}) == 1"
    retired = f"sum by ({gpu(p)}) (max by ({gpu(p)}, cause) ({s('gpu_retired_pages')})) >= {MANY_RETIRED_PAGES}"
    return _alert(
        "GpuRowRemapFailed",
        _of_gpu(p, f"{failed}\nor on ({gpu(p)})\n{retired}"),
        f"{WHERE} cannot replace faulty memory",
        f"A reset does not help: drain the machine, and have the GPU tested and replaced.{Texts(p).pods()}",
        when="a faulty memory row could not be replaced, or nearly all pages that can be retired are",
    )


def _ecc(p: Parameters) -> Alert:
    errors = Selectors(p)("gpu_ecc_errors_total", type="uncorrected", scope="volatile")
    return _alert(
        "GpuUncorrectedEcc",
        _of_gpu(p, f"max by ({gpu(p)}) ({errors}) > 0", "xid", "xid_name"),
        f"{WHERE} had uncorrected memory errors",
        f"Since the driver was loaded or the GPU was reset.{_AFTER_XID} The program that read the memory has failed. "
        f"Reset the GPU; if the errors occur again, have it replaced.{Texts(p).pods()}",
        when="uncorrected memory errors since the last reset",
    )


def _nvlink(p: Parameters) -> Alert:
    s = Selectors(p)
    never = f"max by ({gpu(p)}) ({s('gpu_nvlink_errors_total', kind=_any(NVLINK_NEVER))}) > 0"
    rate = f"max by ({gpu(p)}) ({s.rate('gpu_nvlink_errors_total', p.patience, kind=_any(NVLINK_CORRECTED))})"
    return _alert(
        "GpuNvlinkErrors",
        _of_gpu(p, f"{never}\nor on ({gpu(p)})\n{rate} >= {NVLINK_PER_SECOND}"),
        f"{WHERE} has NVLink errors",
        "A link had to repeat or retrain, or corrects very many errors. Check the link and the GPU at its other end, "
        f"reset both, and have the GPU, the baseboard or the switch replaced if it occurs again.{Texts(p).pods()}",
        when="an NVLink link repeats, retrains, or corrects very many errors",
    )


def _pcie(p: Parameters) -> Alert:
    s = Selectors(p)
    current, most = (f"max by ({gpu(p)}) ({s('gpu_pcie_width', when=when)})" for when in ("current", "max"))
    busy = f"max by ({gpu(p)}) ({s.rate('gpu_busy_seconds_total', p.lookback, engine='gpu')}) >= {UNDER_LOAD:g}"
    # Some GPUs use fewer lanes while they are idle; one that was narrow under load stays so. But for one that has been
    # wide since: the alert keeps firing for a while, in which its link may become idle.
    since = s("gpu_pcie_width", p.keep_firing + p.settle, when="current")
    wide = f"(max by ({gpu(p)}) (max_over_time({since})) >= {most})"
    known = f'(ALERTS{{alertname="GpuPcieDegraded",alertstate="firing"}} unless on ({gpu(p)}) {wide})'
    return _alert(
        "GpuPcieDegraded",
        _of_gpu(p, f"({current}\n< {most})\nand on ({gpu(p)}) ({busy} or {known})"),
        f"{WHERE} uses fewer PCIe lanes than it could",
        "Its link is narrower than the maximum of GPU and slot while the GPU is under load, so copies from and to the "
        f"host are slower. Check seating, riser and slot.{Texts(p).pods()}",
        p.settle,
        when="a GPU under load uses fewer PCIe lanes than it could",
    )


def _hot(p: Parameters) -> Alert:
    s = Selectors(p)
    temperature = f"max by ({gpu(p)}) ({s('gpu_temperature_celsius', sensor='gpu')})"
    slowdown = f"max by ({gpu(p)}) ({s('gpu_temperature_limit_celsius', limit='slowdown')})"
    return _alert(
        "GpuHot",
        _of_gpu(p, f"{temperature}\n>= {slowdown} - {NEAR_SLOWDOWN_CELSIUS}"),
        f"{WHERE} is nearly too hot",
        f"It is at most {NEAR_SLOWDOWN_CELSIUS} degrees below the temperature at which it lowers its clocks. "
        f"Check fans, air flow, inlet temperature and coolant.{Texts(p).pods()}",
        p.settle,
        when="a GPU is nearly as hot as the temperature at which it lowers its clocks",
    )


def _xid(p: Parameters, name: str) -> Alert:
    advice, lasts = _XIDS[name]
    s, by = Selectors(p), f"max by ({gpu(p)}, xid, xid_name)"
    if lasts:
        errors = f"{by} ({s('gpu_xid_unrepaired_timestamp_seconds', None, **{'class': name})})"
        until = "Until the GPU is reset or repaired."
    else:
        errors = f"{by} ({s('gpu_xid_last_timestamp_seconds', None, **{'class': name})}) > time() - {p.patience}"
        until = f"In the last {format_duration(p.patience)}."
    return _alert(
        f"GpuXid{name.capitalize()}",
        _of_gpu(p, errors),
        f"{WHERE} had {_XID}",
        f"{advice} {until}{Texts(p).pods()}",
        when=f"a GPU has an Xid error of the class {name}, until it is repaired"
        if lasts
        else f"a GPU had an Xid error of the class {name}",
    )
