"""Alerts about faults of GPUs that the exporter judges (`gpu_problem_info`), which fire until they are repaired."""

from __future__ import annotations

from typing import Any

from gpugauge.artifacts.rules.alert import Alert
from gpugauge.artifacts.rules.promql import Selectors
from gpugauge.artifacts.rules.recording import Recording
from gpugauge.artifacts.rules.texts import Texts
from gpugauge.base.duration import format_duration
from gpugauge.faults.table import FAULTS, PASSING, REASONED

_LOST_SECONDS = 120  # for which a GPU does not answer
_WAITING = {"GpuPcieDegraded", "GpuHot", "GpuThrottled", "GpuReadingFailed"}  # must last for a while
# Index of each GPU, to be joined on `Selectors.gpu`.
IDENTITY = "gpugauge:gpu:info"
# The words of the daemon, which change: an alert with another identity would resolve the one before.
_WORDS = ("summary", "advice")
_TO_DO = "{{ with $labels.advice }}\nWhat to do: {{ . }}.{{ end }}"
# What an error of each class means.
_XIDS = {
    "GpuXidApplication": '{{ if eq $labels.xid "94" }}Memory of the GPU is faulty: the program that read it has ended, '
    "others go on.{{ else }}An error of the program, whose pid is in `dmesg | grep Xid`: look in its log for "
    "the CUDA error and its stack. CUDA_LAUNCH_BLOCKING=1 makes that of the failing call.{{ end }}",
    "GpuXidReset": "The GPU must be reset.",
    "GpuXidWorkflow": "Memory or NVLink had an error for which NVIDIA has a workflow.",
    "GpuXidNode": "The GPU is off the bus, or power or firmware failed.",
    "GpuXidOther": "NVIDIA's catalogue of Xid errors may say what to do.",
}


def recordings(s: Selectors) -> list[Recording]:
    """Return the rule that the alerts join: one series for each GPU."""
    keys = s.gpu
    # The last one only where there is none now, because an index may have changed in the meantime.
    now, last = (
        f"topk by ({keys}) (1, max by ({keys}, index) ({info}))" for info in (s("gpu_info"), s.last("gpu_info"))
    )
    return [Recording(IDENTITY, f"({now} or on ({keys}) {last})")]


def alerts(s: Selectors) -> list[Alert]:
    """Return the alerts, one for each fault of the table."""
    found, t = [], Texts(s)
    for name, (description, when) in _texts(s).items():
        fault, is_xid = FAULTS[name], name.startswith("GpuXid")
        own = ("reason",) if name in REASONED else ("xid", "xid_name") if is_xid else ()
        hold = _LOST_SECONDS if name == "GpuLost" else s.settle if name in _WAITING else 0
        ends = "" if name in PASSING else f"\nThe alert ends about {format_duration(s.keep_firing)} after the repair."
        lost = name == "GpuLost"
        text = description + t.users(lost=lost) + t.figures(name) + t.other_faults(name) + _TO_DO + ends
        summary = f"{t.gpu()} {{{{ $labels.summary }}}}"
        expr = _of_gpu(s, _judged(s, name, hold, *own))
        more: dict[str, Any] = {"words": _WORDS, "users": t.owners(lost=lost)}
        found.append(Alert(name, expr, summary, text, hold, when, fault.severity, fault.action, **more))
    return found


def _of_gpu(s: Selectors, condition: str) -> str:
    """Return a condition that has one series for each GPU, with its index."""
    return f"(\n{condition}\n)\n* on ({s.gpu}) group_left (index) {IDENTITY}"


def _judged(s: Selectors, name: str, hold: int, *own: str) -> str:
    """Return the GPUs with a fault, now and `hold` seconds ago, with the labels `own` and its words."""
    keys, metric = ", ".join((s.gpu, *own)), "gpu_problem_info"
    found = f"max by ({', '.join((keys, *_WORDS))}) ({s.present(metric, s.lookback, problem=name)})"
    found = f"topk by ({keys}) (1, {found})"
    ago = f"{s(metric, s.lookback, problem=name)} offset {format_duration(hold)}"
    return f"{found}\nand on ({s.gpu}) last_over_time({ago})" if hold else found


def _texts(s: Selectors) -> dict[str, tuple[str, str]]:
    """Return what each fault means, and its condition in words."""
    lately = f" It was in the last {format_duration(s.patience)}."
    texts = {
        "GpuLost": (
            f"It is lost, its driver calls hang, or the driver does not list it.{Texts(s).reason_down()}",
            "a GPU does not answer",
        ),
        "GpuNeedsReset": (
            "Do not wait for its jobs: they may hang or fail, and the repair ends them.",
            "the driver requires a reset of a GPU, or more than that",
        ),
        "GpuResetPending": (
            "By itself it can wait until its jobs end.",
            "faulty memory of a GPU is replaced at the next reset",
        ),
        "GpuRowRemapFailed": (
            "A reset does not help.",
            "a faulty memory row could not be replaced, or nearly all pages that can be retired are",
        ),
        "GpuUncorrectedEcc": (
            "A program that read this memory was ended, or has computed with wrong data. By itself, the GPU needs a "
            "reset when its jobs have ended.",
            "uncorrected memory errors since the last reset",
        ),
        "GpuNvlinkErrors": (
            "Transfers between GPUs are slower, or fail.",
            "an NVLink link repeats, retrains, or corrects very many errors",
        ),
        "GpuPcieDegraded": (
            "Its link is narrower than the maximum of GPU and slot while the GPU is under load, so copies from and to "
            "the host are slower.",
            "a GPU under load uses fewer PCIe lanes than it could",
        ),
        "GpuHot": (
            "From that temperature on it lowers its clocks.",
            "a GPU is near its slowdown temperature, from which on it lowers its clocks",
        ),
        "GpuThrottled": (
            f"Programs on it are slower.{Texts(s).reason_slowed()}",
            "a busy GPU lowers its clocks for a fifth of the time because of heat or a power brake",
        ),
        "GpuReadingFailed": (
            "Alerts and views that need this part are blind.",
            "the driver cannot read a part of a GPU, such as its memory errors",
        ),
    }
    for name, means in _XIDS.items():
        kind = name.removeprefix("GpuXid").lower()
        when, until = (lately, "") if name in PASSING else ("", ", until it is repaired")
        had = "had" if name in PASSING else "has"
        texts[name] = means + when, f"a GPU {had} an Xid error of the class {kind}{until}"
    return texts
