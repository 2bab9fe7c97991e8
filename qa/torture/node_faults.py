"""Faults of the node around the daemon: processes that come and go, the kernel log, the kubelet."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from tests.workload.kubelet import Service, listing, serving

from qa.torture.fault import Fault, Inject
from qa.torture.scrape import Scrape
from qa.torture.signs import rises
from qa.torture.subject import Setting, Subject
from qa.torture.worker_faults import once

_FORKS = """
import os, sys, time
due, end = time.monotonic(), time.monotonic() + float(sys.argv[1])
while (now := time.monotonic()) < end:
    if now < due:
        time.sleep(due - now)
    due += 0.002
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
"""


@contextlib.contextmanager
def _processes_come_and_go(_: Subject) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", _FORKS, "8"]) as forks:
        yield
        forks.kill()


def _processes_end(run: Subject) -> None:
    for sleeper in run.sleepers:
        sleeper.kill()
        sleeper.wait()


def _no_facts_of_the_processes(before: Scrape, scrape: Scrape, _run: Subject) -> bool:
    # The machine may have programs with torch that are on no GPU.
    on_gpus = {labels["process"] for labels, _ in before.of("gpu_process_memory_used_bytes")}
    return on_gpus.isdisjoint(labels["process"] for labels, _ in scrape.of("gpu_process_threads"))


_KERNEL_LINE = "6,{},{},-;usb 1-1: new high-speed device"
_XID = "4,{},{},-;NVRM: Xid (PCI:0000:11:00): 79, pid=1, GPU has fallen off the bus."


@contextlib.contextmanager
def _kernel_log_flood(run: Subject) -> Iterator[None]:
    """Write some 10,000 lines a second, 4 of them about a GPU; of equal length, so that no read splits a line."""
    stop = threading.Event()

    def write() -> None:
        with (run.folder / "kmsg").open("wb", buffering=0) as log:
            fcntl.fcntl(log, fcntl.F_SETPIPE_SZ, 1 << 20)
            for number in range(100):
                lines = [_KERNEL_LINE.format(i, number).ljust(127) + "\n" for i in range(640)]
                if number % 25 == 0:
                    lines[7] = _XID.format(7, number).ljust(127) + "\n"
                for i in range(0, 640, 32):
                    log.write("".join(lines[i : i + 32]).encode())
                if stop.wait(0.05):
                    return

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    yield
    stop.set()
    writer.join(5)


_PODS = {("research", "trainer"): {"main": {"nvidia.com/gpu": ["GPU-0"]}}}


def _kubelet(hangs: bool) -> Inject:
    @contextlib.contextmanager
    def inject(run: Subject) -> Iterator[None]:
        service = Service(listing(_PODS))
        service.hangs = hangs
        with serving(run.folder / "kubelet.sock", service):
            if hangs:
                yield
            else:
                time.sleep(12)  # until the daemon has sent a request
        if not hangs:
            yield

    return inject


FAULTS: tuple[Fault, ...] = (
    Fault(
        "500 processes a second begin and end",
        "on a node with real processes, for 8 s",
        inject=_processes_come_and_go,
        setting=Setting(real=True),
        lasts=8,
    ),
    Fault(
        "the processes of the GPUs vanish",
        "they are killed; the driver still lists them, /proc does not have them",
        "`gpu_process_threads` and all else from /proc is gone",
        _no_facts_of_the_processes,
        once(_processes_end),
        setting=Setting(real=True),
        report_within=15,
    ),
    Fault(
        "the kernel log is flooded",
        "10,000 lines a second through path.kmsg, 4 of them Xid 79 of a GPU",
        '`gpu_xid_errors_total{class="node"}`, each of the four',
        rises("gpu_xid_errors_total", 4, class_="node"),
        _kernel_log_flood,
        setting=Setting(real=True, flags=["--path.kmsg={}/kmsg"], fifos=["kmsg"]),
        report_within=15,
        lasts=8,
    ),
    *(
        Fault(
            f"the kubelet {event}",
            how,
            '`gpugauge_attribution_source_up{source="kubelet"}` 0',
            lambda _before, scrape, _run: (
                scrape.total("gpugauge_attribution_source_up", {"source": "kubelet"}) == 0
                and any(labels["source"] == "kubelet" for labels, _ in scrape.of("gpugauge_attribution_source_up"))
            ),
            _kubelet(hangs),
            setting=Setting(flags=["--kubernetes.kubelet-socket={}/kubelet.sock"]),
            report_within=40,
            lasts=15,
        )
        for event, how, hangs in (
            ("goes", "its socket is there for 12 s, and then it is not", False),
            ("hangs", "it takes the question and does not answer", True),
        )
    ),
)
