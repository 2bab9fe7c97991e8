"""Faults of the machine around the daemon: processes, clocks, files, limits, and what it reads besides the driver."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.workload.kubelet import Service, listing, serving

from bench.torture.fault import Fault, Inject, switched
from bench.torture.kernel import stopped_thread, waits_for_time
from bench.torture.signs import device_down, every, lacks, logs, rises, shows
from bench.torture.subject import FULL_PIPE, Setting, Subject
from bench.torture.worker_faults import RESTARTED, RESTARTS, once, signalled, worker_of


@contextlib.contextmanager
def _daemon_stopped(run: Subject) -> Iterator[None]:
    os.kill(run.pid, signal.SIGSTOP)
    time.sleep(5)
    os.kill(run.pid, signal.SIGCONT)
    yield


@contextlib.contextmanager
def _sampler_stopped(run: Subject) -> Iterator[None]:
    while not waits_for_time(run.pid, run.pid):
        time.sleep(0.01)
    with stopped_thread(run.pid):  # the main thread is the sampler
        yield


@contextlib.contextmanager
def _limited(pid: int, limit: int, value: int) -> Iterator[None]:
    soft, hard = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (value, hard))
    yield
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, limit, (soft, hard))


@contextlib.contextmanager
def _no_descriptors(run: Subject) -> Iterator[None]:
    """None is left, and strangers knock at both sockets."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_limited(run.pid, resource.RLIMIT_NOFILE, 3))
        for _ in range(20):
            stranger = stack.enter_context(socket.socket())
            stranger.connect(("127.0.0.1", run.port))
            hook = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            hook.connect(run.hook)
        yield


def _size(pid: int) -> int:
    """Bytes of private memory that it may write to, as RLIMIT_DATA counts them."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmData:")[2].split()[0]) * 1024


@contextlib.contextmanager
def _no_memory(run: Subject) -> Iterator[None]:
    """Little is left, and there is something to do that takes some: another worker, pages for people."""
    with _limited(run.pid, resource.RLIMIT_DATA, _size(run.pid) + (2 << 20)):
        os.kill(worker_of(run), signal.SIGKILL)
        for path in ("/", "/api/v1/status") * 10:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{run.port}{path}", timeout=5).close()
        yield


@contextlib.contextmanager
def _no_memory_for_the_worker(run: Subject) -> Iterator[None]:
    worker = worker_of(run)
    with _limited(worker, resource.RLIMIT_DATA, _size(worker) + (8 << 20)), switched(run):
        yield


def _steps(seconds: float) -> Inject:
    return once(lambda run: run.step_clock(seconds))


@contextlib.contextmanager
def _bad_settings(run: Subject) -> Iterator[None]:
    file = run.folder / "settings.yaml"
    file.write_text("sampling: {interval_secnds: 1}\n")
    os.kill(run.pid, signal.SIGHUP)
    yield
    file.write_text("{}\n")
    os.kill(run.pid, signal.SIGHUP)


def _post(run: Subject, path: str) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{run.port}{path}", data=b"", method="POST")
    urllib.request.urlopen(request, timeout=20).close()


@contextlib.contextmanager
def _released(run: Subject) -> Iterator[None]:
    _post(run, "/-/release?for=1h")
    yield
    _post(run, "/-/attach")


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


_KERNEL_LINE = "6,{},{},-;usb 1-1: new high-speed device"
_XID = "4,{},{},-;NVRM: Xid (PCI:0000:11:00): 79, pid=1, GPU has fallen off the bus."


@contextlib.contextmanager
def _kernel_log_flood(run: Subject) -> Iterator[None]:
    """Some 10,000 lines a second, 4 of them about a GPU; of equal length, so that no read cuts one."""
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
                time.sleep(12)  # time to be asked
        if not hangs:
            yield

    return inject


FAULTS: tuple[Fault, ...] = (
    Fault(
        "the whole daemon is stopped for 5 s",
        "SIGSTOP, SIGCONT; the scrape that comes meanwhile waits for it",
        inject=_daemon_stopped,
        lasts=6,
        delayed=1,
    ),
    Fault(
        "the sampler is stopped for 14 s",
        "its thread alone, by ptrace; the server goes on",
        "`gpugauge_snapshot_timestamp_seconds` stands still, and after 10 s all but `gpugauge_*` is gone",
        lacks('gpu_power_watts{uuid="GPU-0"}'),
        _sampler_stopped,
        lasts=14,
        tell_within=13,
    ),
    *(
        Fault(
            f"the wall clock steps {way}",
            f"time.time() of daemon and worker changes by {seconds:+d} s at once",
            "`gpugauge_snapshot_timestamp_seconds` follows",
            lambda _before, page, run: (
                abs((page.value("gpugauge_snapshot_timestamp_seconds") or 0) - time.time() - run.clock_offset) < 3
            ),
            _steps(seconds),
            setting=Setting(clock=True),
            quick=seconds < 0,
        )
        for way, seconds in (("back", -3600), ("ahead", 86400))
    ),
    Fault(
        "no descriptor is left",
        "RLIMIT_NOFILE 3, while 20 strangers knock at each socket",
        "the log",
        logs("no connection can be accepted"),
        _no_descriptors,
        lasts=8,
        also=lambda _before, _page, run: len(run.log()) < 5000,
        quick=True,
    ),
    Fault(
        "little memory is left for the daemon",
        "RLIMIT_DATA 2 MiB above what it has, while its worker is killed and pages are asked for",
        f"`{RESTARTS}`",
        RESTARTED,
        _no_memory,
        lasts=8,
    ),
    Fault(
        "little memory is left for the worker",
        "RLIMIT_DATA 8 MiB above what it has, and a library that leaks",
        '`gpugauge_driver_errors_total{code="unknown"}`, `gpu_up` 0',
        every(rises("gpugauge_driver_errors_total", code="unknown"), device_down(0, 1, 2)),
        _no_memory_for_the_worker,
        setting=Setting(faults=[{"call": "nvmlDeviceGetUtilizationRates", "leak": "3MiB", "while_exists": "{}/fault"}]),
        lasts=8,
    ),
    Fault(
        "the log's disk is full",
        "standard error is /dev/full, and there is something to say (a killed worker)",
        f"`{RESTARTS}`",
        RESTARTED,
        signalled(signal.SIGKILL),
        setting=Setting(log="/dev/full"),
        quick=True,
    ),
    Fault(
        "nobody reads the log",
        "standard error is a full pipe from the start, and there is something to say (a killed worker)",
        f"`{RESTARTS}`",
        RESTARTED,
        signalled(signal.SIGKILL),
        setting=Setting(log=FULL_PIPE),
        quick=True,
    ),
    Fault(
        "settings broken on reload",
        "an unknown key, SIGHUP; then a good file, SIGHUP",
        "`gpugauge_config_last_reload_successful` 0, the log with file, line and key",
        every(shows("gpugauge_config_last_reload_successful", 0), logs("sampling.interval_seconds")),
        _bad_settings,
        setting=Setting(files={"settings.yaml": "{}\n"}, flags=["--config.file={}/settings.yaml"]),
        lasts=3,
        quick=True,
    ),
    Fault(
        "the driver is released and attached",
        "POST /-/release, 6 s later POST /-/attach",
        "`gpugauge_driver_released` 1; device gauges absent, `gpu_up` too",
        every(shows("gpugauge_driver_released", 1), lacks('gpu_up{uuid="GPU-0"}')),
        _released,
        setting=Setting(flags=["--web.enable-lifecycle"]),
        quick=True,
    ),
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
        lambda _before, page, _run: not any(page.of("gpu_process_threads")),
        once(_processes_end),
        setting=Setting(real=True),
        tell_within=15,
    ),
    Fault(
        "the kernel log is flooded",
        "10,000 lines a second through path.kmsg, 4 of them Xid 79 of a GPU",
        '`gpu_xid_errors_total{class="node"}`, each of the four',
        rises("gpu_xid_errors_total", 4, class_="node"),
        _kernel_log_flood,
        setting=Setting(real=True, flags=["--path.kmsg={}/kmsg"], fifos=["kmsg"]),
        tell_within=15,
        lasts=8,
    ),
    *(
        Fault(
            f"the kubelet {what}",
            how,
            '`gpugauge_attribution_source_up{source="kubelet"}` 0',
            lambda _before, page, _run: (
                page.total("gpugauge_attribution_source_up", {"source": "kubelet"}) == 0
                and any(labels["source"] == "kubelet" for labels, _ in page.of("gpugauge_attribution_source_up"))
            ),
            _kubelet(hangs),
            setting=Setting(flags=["--kubernetes.kubelet-socket={}/kubelet.sock"]),
            tell_within=40,
            lasts=15,
        )
        for what, how, hangs in (
            ("goes", "its socket is there for 12 s, and then it is not", False),
            ("hangs", "it takes the question and does not answer", True),
        )
    ),
)
