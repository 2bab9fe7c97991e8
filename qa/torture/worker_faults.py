"""Faults of the worker process and of the pipe to it; and the control, which does nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator

from qa.torture.fault import Fault, Inject, switched
from qa.torture.kernel import hanging_folder, worker_channel
from qa.torture.signs import device_down, down, every, rises, shows
from qa.torture.subject import Setting, Subject

RESTARTS = "gpugauge_worker_restarts_total"
RESTARTED = rises(RESTARTS)
_STAT = {"call": "nvmlDeviceGetUtilizationRates", "stat": "{}/hang/file", "while_exists": "{}/fault"}


def once(act: Callable[[Subject], object]) -> Inject:
    """Return an injection that acts once."""

    @contextlib.contextmanager
    def inject(run: Subject) -> Iterator[None]:
        act(run)
        yield

    return inject


def worker_of(run: Subject) -> int:
    worker = run.worker()
    assert worker, "there is no worker"
    return worker


def signalled(number: int) -> Inject:
    return once(lambda run: os.kill(worker_of(run), number))


@contextlib.contextmanager
def _kernel_hangs(run: Subject) -> Iterator[None]:
    with hanging_folder(run.folder / "hang"), switched(run):
        yield


def _pipe_breaks(run: Subject) -> None:
    with worker_channel(worker_of(run)) as channel:
        channel.shutdown(socket.SHUT_RDWR)


def _pipe_babbles(run: Subject) -> None:
    with worker_channel(worker_of(run)) as channel:
        channel.send(b"\xff" * 64)


FAULTS: tuple[Fault, ...] = (
    Fault(
        "nothing at all",
        "the control: the same node, the same scraper",
        lasts=8,
        quick=True,
        inject=once(lambda _: None),
    ),
    Fault("the worker is killed", "SIGKILL", f"`{RESTARTS}`", RESTARTED, signalled(signal.SIGKILL), quick=True),
    Fault(
        "the worker is asked to end",
        "SIGTERM from another process",
        f"`{RESTARTS}`",
        RESTARTED,
        signalled(signal.SIGTERM),
    ),
    Fault(
        "the worker is stopped",
        "SIGSTOP, and nobody lets it go on",
        f"`{RESTARTS}`; `gpu_up` 0 for the GPU that it was reading",
        RESTARTED,
        signalled(signal.SIGSTOP),
        recover_within=45,
    ),
    Fault(
        "a worker cannot be killed",
        "it looks at a file of a FUSE file system that never answers: state D, also after SIGKILL",
        "`gpugauge_worker_unkillable` 1, `gpu_up` 0 for the GPU",
        every(shows("gpugauge_worker_unkillable", 1), device_down(1)),
        _kernel_hangs,
        setting=Setting(faults=[{**_STAT, "gpu": 1}]),
        lasts=12,
        recover_within=45,
    ),
    Fault(
        "two workers cannot be killed",
        "the same for every GPU",
        '`gpugauge_worker_unkillable` 2, `gpugauge_driver_up{reason="worker_unkillable"}` 0',
        every(shows("gpugauge_worker_unkillable", 2), down("worker_unkillable")),
        _kernel_hangs,
        setting=Setting(faults=[_STAT]),
        lasts=14,
        report_within=20,
        recover_within=90,
    ),
    Fault(
        "the pipe to the worker breaks",
        "both directions are shut",
        f"`{RESTARTS}`",
        RESTARTED,
        once(_pipe_breaks),
        quick=True,
    ),
    Fault(
        "the pipe carries nonsense",
        "64 bytes 0xff into the worker's answers",
        f"`{RESTARTS}`",
        RESTARTED,
        once(_pipe_babbles),
    ),
)
