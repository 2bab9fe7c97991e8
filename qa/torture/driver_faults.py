"""Faults of the driver: error codes by class of calls, hangs, crashes, lost GPUs, unloaded and upgraded drivers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qa.torture.fault import Fault, Sign
from qa.torture.signs import device_down, down, every, rises
from qa.torture.subject import Setting
from qa.torture.worker_faults import once

_SWITCH = {"while_exists": "{}/fault"}
_RESTARTS = "gpugauge_worker_restarts_total"
# NVML's error codes; the GPU at the same position fails with the code.
_CODES = (
    "no_permission",
    "not_found",
    "insufficient_size",
    "timeout",
    "irq_issue",
    "operating_system",
    "in_use",
    "memory",
    "insufficient_resources",
    "not_ready",
    "unknown",
    "gpu_is_lost",
    "reset_required",
)
# Classes of calls: name, functions, seconds until every GPU has been read, and the code that is not an error of the
# call (a sample ring without new samples returns not_found).
_CALLS: tuple[tuple[Any, ...], ...] = (
    ("the utilization percentages", "nvmlDeviceGetUtilizationRates", 6.0),
    ("the sample rings", "nvmlDeviceGetSamples", 6.0, "not_found"),
    ("memory, power, temperature, clocks", "nvmlDeviceGet[MPTC][eol]*", 8.0),
    ("the batch of field values", "nvmlDeviceGetFieldValues", 8.0),
    ("the process lists", "nvmlDeviceGet*RunningProcesses*", 8.0),
    ("profiling (GPM)", "nvmlGpmSampleGet", 6.0),
)


def _layout(*profiles: str) -> Sign:
    """Return a sign: these are the profiles of all MIG devices."""
    return lambda _before, scrape, _run: (
        sorted(labels["profile"] for labels, _ in scrape.of("gpu_mig_info")) == sorted(profiles)
    )


def _on_each_device(call: str, name: str, within: float, no_error: str = "") -> Fault:
    faults = [{"call": call, "gpu": i, "code": code, **_SWITCH} for i, code in enumerate(_CODES)]
    counted = [rises("gpugauge_driver_errors_total", code=code) for code in _CODES if code != no_error]
    return Fault(
        f"{len(_CODES)} error codes, one a GPU: {name}",
        f"`{call}` fails with {', '.join(_CODES)}",
        "`gpugauge_driver_errors_total` by code, `gpu_reading_failed` from 15 s on",
        every(*counted),
        setting=Setting(devices=len(_CODES) + 1, faults=faults),
        lasts=within + 2,
        report_within=within + 6,
        recover_within=20,
    )


def _one(
    name: str, how: str, reported_by: str, sign: Any, *faults: dict[str, Any], flags: Sequence[str] = (), **more: Any
) -> Fault:
    setting = Setting(faults=[{**fault, **_SWITCH} for fault in faults], flags=flags)
    return Fault(name, how, reported_by, sign, setting=setting, **more)


_LIFECYCLE = (
    ("uninitialized", "the library forgets that it was initialised"),
    ("driver_not_loaded", "the kernel module is unloaded"),
    ("library_mismatch", "the driver is upgraded below the library"),
    ("gpu_not_found", "the driver finds no GPU any more"),
)

FAULTS: tuple[Fault, ...] = (
    *(_on_each_device(call, name, within, *no_error) for name, call, within, *no_error in _CALLS),
    *(
        _one(
            f"driver: {code}",
            f"{event}: every call answers {code}, opening it again too",
            f'`gpugauge_driver_up{{reason="{code}"}}` 0, `gpu_up` 0',
            every(down(code), device_down(0, 1, 2)),
            {"call": "nvml*", "code": code},
            quick=code == "library_mismatch",
        )
        for code, event in _LIFECYCLE
    ),
    _one(
        "a call of one GPU hangs, deaf to SIGTERM",
        "a reading does not return; the process blocks SIGTERM",
        "`gpu_up` 0 for the GPU, `gpugauge_worker_restarts_total`",
        every(device_down(1), rises(_RESTARTS)),
        {"call": "nvmlDeviceGetUtilizationRates", "gpu": 1, "hang": True},
        lasts=8,
        recover_within=45,
    ),
    _one(
        "opening the driver hangs",
        "the worker is killed, and the next one hangs in nvmlInit for 12 s",
        "`gpugauge_worker_restarts_total`; values drop out when they are too old",
        rises(_RESTARTS),
        {"call": "nvmlInitWithFlags", "hang": True},
        {"call": "nvmlDeviceGetUtilizationRates", "crash": True},
        lasts=12,
        recover_within=45,
    ),
    _one(
        "a slow GPU",
        "each reading of utilization takes 0.8 s, less than the deadline",
        "`gpugauge_driver_call_longest_seconds`, `gpu_reading_seconds`",
        lambda _before, scrape, _run: scrape.total("gpugauge_driver_call_longest_seconds") > 0.8,
        {"call": "nvmlDeviceGetUtilizationRates", "gpu": 1, "delay": 0.8},
        report_within=12,
    ),
    _one(
        "the library crashes",
        "SIGSEGV in a call of one GPU",
        "`gpugauge_worker_restarts_total`, `gpu_up` 0 from the second time on",
        every(device_down(1), rises(_RESTARTS, 2)),
        {"call": "nvmlDeviceGetMemoryInfo_v2", "gpu": 1, "crash": True},
        report_within=20,
        lasts=8,
        recover_within=90,
    ),
    _one(
        "values that cannot be true",
        "every number that a GPU answers has all bits set",
        '`gpugauge_driver_errors_total{code="implausible_value"}`, `gpu_reading_failed` from 15 s on',
        rises("gpugauge_driver_errors_total", code="implausible_value"),
        {"call": "nvmlDeviceGet[MPT]*", "gpu": 1, "value": 18446744073709551615},
        {"call": "nvmlDeviceGetUtilizationRates", "gpu": 1, "value": 18446744073709551615},
        {"call": "nvmlDeviceGetClockInfo", "gpu": 1, "value": 18446744073709551615},
        quick=True,
    ),
    Fault(
        "a GPU falls off the bus and returns",
        "every call says lost, a new worker does not see the GPU; 12 s later it is there again",
        '`gpu_up` 0; `gpugauge_worker_recycles_total{reason="cards"}` when it is back',
        device_down(1),
        setting=Setting(gpu={1: {"lost_at": 9.0, "back_at": 21.0}}),
        lasts=17,
        report_within=12,
        recover_within=30,
        finally_=rises("gpugauge_worker_recycles_total", reason="cards"),
    ),
    Fault(
        "a GPU reports Xid 79",
        "the driver's event, then every call says lost",
        '`gpu_xid_errors_total{class="node"}`, `gpu_up` 0',
        every(rises("gpu_xid_errors_total", class_="node"), device_down(2)),
        setting=Setting(gpu={2: {"lost_at": 9.2, "back_at": 15.0, "health": {"xids": [{"at": 9.0, "xid": 79}]}}}),
        lasts=12,
        report_within=12,
        recover_within=30,
    ),
    Fault(
        "the MIG layout changes",
        "two MIG devices of a GPU are destroyed and another is created, while a process works on a third one",
        "`gpu_mig_info` has the new layout, `gpu_mig_changes_total`",
        every(_layout("2g.20gb", "3g.40gb"), rises("gpu_mig_changes_total")),
        once(lambda _: None),
        setting=Setting(
            gpu={
                2: {
                    "mig": [
                        {"profile": "3g.40gb"},
                        {"profile": "1g.10gb", "count": 2, "end": 9.0},
                        {"profile": "2g.20gb", "start": 9.0},
                    ]
                }
            }
        ),
        during=_layout("2g.20gb", "3g.40gb"),
        lasts=10,
    ),
    _one(
        "the library leaks",
        "each reading leaves 3 MiB behind; the worker may have 96 MiB",
        '`gpugauge_worker_recycles_total{reason="memory"}`',
        rises("gpugauge_worker_recycles_total", reason="memory"),
        {"call": "nvmlDeviceGetUtilizationRates", "gpu": 0, "leak": "3MiB"},
        flags=[f"--driver.worker-max-bytes={96 << 20}"],
        report_within=90,
        lasts=60,
    ),
    Fault(
        "the worker is replaced by age again and again",
        "every 4 s, driver.worker_max_seconds=4",
        '`gpugauge_worker_recycles_total{reason="age"}`',
        rises("gpugauge_worker_recycles_total", 3, reason="age"),
        setting=Setting(flags=["--driver.worker-max-seconds=4"]),
        report_within=25,
        lasts=15,
        quick=True,
    ),
    Fault(
        "the driver's sample clock jumps",
        "an hour ahead, then two hours back",
        "nothing: time is counted between samples that follow each other",
        setting=Setting(gpu={i: {"ring": {"clock_steps": [[9.0, 3600.0], [14.0, -7200.0]]}} for i in range(3)}),
        lasts=14,
    ),
)
