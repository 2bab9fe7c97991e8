"""Alerts about faults of GPUs, which the exporter judges (`gpu_problem`). They fire until the fault is repaired, also
when it is older than the first scrape. They carry cluster, node, uuid and index of the GPU and the Xid code as labels,
so that their texts need no query.
"""

from __future__ import annotations

from gpugauge.artifacts.rules.alert import Alert
from gpugauge.artifacts.rules.promql import Selectors
from gpugauge.artifacts.rules.recording import Recording
from gpugauge.artifacts.rules.texts import Texts
from gpugauge.base.duration import format_duration
from gpugauge.faults.table import COOLING, FAULTS

_LOST_SECONDS = 120  # for which a GPU does not answer
_WAITING = {"GpuPcieDegraded", "GpuHot", "GpuThrottled"}  # must last for a while
# Index and first Xid error of each GPU, to be joined on `Selectors.gpu`.
IDENTITY = "gpugauge:gpu:info"
WHERE = "GPU {{ $labels.index }} ({{ $labels.uuid }}) on {{ $labels.instance }}"
_XID = "Xid {{ $labels.xid }}{{ if $labels.xid_name }} ({{ $labels.xid_name }}){{ end }}"
_RESET = "Drain the machine, stop gpugauge, which has the driver open, reset the GPU, and start gpugauge"
_AFTER_XID = "{{ if $labels.xid }} First error: " + _XID + ".{{ end }}"

# What is wrong and what to do, by class of Xid errors.
_XIDS = {
    "application": '{{ if eq $labels.xid "94" }}Faulty memory ended the program: restart it, and reset the GPU when no '
    "program uses it.{{ else }}An error of the program: read its log and restart it.{{ end }}",
    "reset": f"{_RESET}.",
    "workflow": "Memory or NVLink needs the workflow in NVIDIA's catalogue of Xid errors.",
    "node": "Inspect the machine: the GPU is off the bus, or power or firmware failed.",
    "other": "NVIDIA's catalogue of Xid errors may say what to do.",
}
_PASSING = {"application", "other"}
_XID_LABELS = ("xid", "xid_name")


def recordings(s: Selectors) -> list[Recording]:
    """Return the rule that the alerts join: one series for each GPU."""
    keys = s.gpu
    # The last one only where there is none now, because an index may have changed in the meantime.
    now, last = (
        f"topk by ({keys}) (1, max by ({keys}, index) ({info}))" for info in (s("gpu_info"), s.last("gpu_info"))
    )
    index = f"({now} or on ({keys}) {last})"
    errors = f"max by ({keys}, xid, xid_name) ({s.last('gpu_xid_unrepaired_timestamp_seconds')})"
    first = f"(bottomk by ({keys}) (1, {errors}) > bool 0)"
    joined = f"{index}\n* on ({keys}) group_left (xid, xid_name)\n{first}"
    return [Recording(IDENTITY, f"({joined})\nor on ({keys})\n{index}")]


def alerts(s: Selectors) -> list[Alert]:
    """Return the alerts, one for each fault of the table."""
    found = []
    for name, (description, when) in {**_texts(s), **_xid_texts(s)}.items():
        fault, is_xid = FAULTS[name], name.startswith("GpuXid")
        labels = ("reason",) if name == "GpuNeedsReset" else _XID_LABELS if is_xid else ()
        hold = _LOST_SECONDS if name == "GpuLost" else s.settle if name in _WAITING else 0
        expr = _of_gpu(s, _judged(s, name, hold, *labels), *(_XID_LABELS if _AFTER_XID in description else ()))
        summary = f"{WHERE} " + (f"had {_XID}" if is_xid else fault.summary)
        summary += ": {{ $labels.reason }}" if labels == ("reason",) else ""
        kind = name.removeprefix("GpuXid").lower() if is_xid else ""
        since = Texts(s).since_when(name, "" if kind in _PASSING else kind)
        text = description + since + Texts(s).pods(lost=name == "GpuLost")
        found.append(Alert(name, expr, summary, text, hold, when, fault.severity, fault.action))
    unread = Alert(
        "GpuReadingFailed",
        _of_gpu(s, _unread(s)),
        f"{WHERE} {FAULTS['GpuReadingFailed'].summary}: {{{{ $labels.reading }}}}",
        "The driver returns {{ $labels.reason }}. Alerts and views that need this part are blind. See the kernel log, "
        "then drain and reboot the machine; in a container, restart it."
        f"{Texts(s).since_when('GpuReadingFailed')}{Texts(s).pods()}",
        s.settle,
        "the driver cannot read a part of a GPU, such as its memory errors",
    )
    return [*found, unread]


def _unread(s: Selectors) -> str:
    by, name = f"max by ({s.gpu}, reading, reason)", "gpu_reading_failed"
    known = f"last_over_time({s(name, s.lookback)} offset {format_duration(s.settle)})"
    return f"{by} ({s.present(name, s.lookback)})\nand on ({s.gpu}, reading) {known}"


def _of_gpu(s: Selectors, condition: str, *labels: str) -> str:
    """Return a condition that has one series for each GPU, with its index and the further `labels` of IDENTITY."""
    return f"(\n{condition}\n)\n* on ({s.gpu}) group_left ({', '.join(('index', *labels))}) {IDENTITY}"


def _judged(s: Selectors, name: str, hold: int, *labels: str) -> str:
    """Return the GPUs with a fault, now and `hold` seconds ago, and these labels of its information."""
    metric = "gpu_problem_info" if labels else "gpu_problem"
    found = f"max by ({', '.join((s.gpu, *labels))}) ({s.present(metric, s.lookback, problem=name)})"
    ago = f"{s(metric, s.lookback, problem=name)} offset {format_duration(hold)}"
    return f"{found}\nand on ({s.gpu}) last_over_time({ago})" if hold else found


def _texts(s: Selectors) -> dict[str, tuple[str, str]]:
    """Return description and condition in words of each alert that is not about an Xid error."""
    return {
        "GpuLost": (
            f"It is lost, its driver calls hang, or the driver does not list it.{Texts(s).reason_down()}{_AFTER_XID} "
            "Drain and reboot the machine; if the GPU is lost again, have it replaced.",
            "a GPU does not answer",
        ),
        "GpuNeedsReset": (
            f"The driver requires it, or memory that had errors is replaced at the next reset.{_AFTER_XID} "
            f"{_RESET}; if the reset fails, reboot.",
            "the driver requires a reset, or faulty memory is replaced at the next one",
        ),
        "GpuRowRemapFailed": (
            "A reset does not help: drain the machine, and have the GPU tested and replaced.",
            "a faulty memory row could not be replaced, or nearly all pages that can be retired are",
        ),
        "GpuUncorrectedEcc": (
            f"Since the driver was loaded or the GPU was reset.{_AFTER_XID} The program that read the memory has "
            f"ended or computed with wrong data. {_RESET}; if the errors occur again, have it replaced.",
            "uncorrected memory errors since the last reset",
        ),
        "GpuNvlinkErrors": (
            "A link had to repeat or retrain, or corrects very many errors. Check the link and the GPU at its other "
            "end, reset all GPUs of the machine, and have GPU, baseboard or switch replaced if it occurs again.",
            "an NVLink link repeats, retrains, or corrects very many errors",
        ),
        "GpuPcieDegraded": (
            "Its link is narrower than the maximum of GPU and slot while the GPU is under load, so copies from and to "
            "the host are slower. Check seating, riser and slot.",
            "a GPU under load uses fewer PCIe lanes than it could",
        ),
        "GpuHot": (
            f"From that temperature on it lowers its clocks. Check {COOLING}.",
            "a GPU is near its slowdown temperature, from which on it lowers its clocks",
        ),
        "GpuThrottled": (
            "For a fifth of the last minutes or more, unless the exporter has another limit. Check "
            f"{COOLING} and the power supply.",
            "a busy GPU lowers its clocks for a fifth of the time because of heat or a power brake",
        ),
    }


def _xid_texts(s: Selectors) -> dict[str, tuple[str, str]]:
    lately, lasting = f"It was in the last {format_duration(s.patience)}.", "The alert fires until the GPU is repaired."
    return {
        f"GpuXid{kind.capitalize()}": (
            f"{advice} {lately if kind in _PASSING else lasting}",
            f"a GPU had an Xid error of the class {kind}"
            if kind in _PASSING
            else f"a GPU has an Xid error of the class {kind}, until it is repaired",
        )
        for kind, advice in _XIDS.items()
    }
