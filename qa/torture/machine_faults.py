"""Faults of the machine under the daemon: stopped threads, the clock, limits, the log, settings, a released driver."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from qa.torture.fault import Fault, Inject, switched
from qa.torture.kernel import stopped_thread, waits_for_time
from qa.torture.scrape import Scrape
from qa.torture.signs import device_down, every, lacks, logs, rises, shows
from qa.torture.subject import FULL_PIPE, Setting, Subject
from qa.torture.worker_faults import RESTARTED, RESTARTS, once, signalled, worker_of

_RELOAD_SECONDS = 4.0  # until all files are read again
_RELOAD, _WEB_RELOAD = (f"gpugauge_{kind}_last_reload_successful" for kind in ("config", "web_config"))


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
    with stopped_thread(run.pid):  # the sampler runs in the main thread
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
    """Leave no free descriptor, and connect to both sockets."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_limited(run.pid, resource.RLIMIT_NOFILE, 3))
        for _ in range(20):
            client = stack.enter_context(socket.socket())
            client.connect(("127.0.0.1", run.port))
            hook = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            hook.connect(run.hook)
        yield


def _data_bytes(pid: int) -> int:
    """Return the private writable memory of a process, as RLIMIT_DATA counts it."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmData:")[2].split()[0]) * 1024


@contextlib.contextmanager
def _no_memory(run: Subject) -> Iterator[None]:
    """Leave little memory, and cause work that needs some: another worker, and requests for the page and the status."""
    with _limited(run.pid, resource.RLIMIT_DATA, _data_bytes(run.pid) + (2 << 20)):
        os.kill(worker_of(run), signal.SIGKILL)
        for path in ("/", "/api/v1/status") * 10:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{run.port}{path}", timeout=5).close()
        yield


@contextlib.contextmanager
def _no_memory_for_the_worker(run: Subject) -> Iterator[None]:
    worker = worker_of(run)
    with _limited(worker, resource.RLIMIT_DATA, _data_bytes(worker) + (8 << 20)), switched(run):
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


def _pipe_in_place_of(name: str) -> Inject:
    """Put a named pipe in the place of a file of the daemon's folder and reload; then put the file back and reload."""

    @contextlib.contextmanager
    def inject(run: Subject) -> Iterator[None]:
        (run.folder / name).rename(run.folder / "kept")
        os.mkfifo(run.folder / name)
        os.kill(run.pid, signal.SIGHUP)
        yield
        (run.folder / "kept").rename(run.folder / name)
        os.kill(run.pid, signal.SIGHUP)
        time.sleep(_RELOAD_SECONDS)

    return inject


def _killed_by_kernel(_before: Scrape, _scrape: Scrape, run: Subject) -> bool:
    return run.limits is not None and run.limits.memory_events()["oom_kill"] > 0


def _post(run: Subject, path: str) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{run.port}{path}", data=b"", method="POST")
    urllib.request.urlopen(request, timeout=20).close()


@contextlib.contextmanager
def _released(run: Subject) -> Iterator[None]:
    _post(run, "/-/release?for=1h")
    yield
    _post(run, "/-/attach")


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
        report_within=13,
    ),
    *(
        Fault(
            f"the wall clock steps {way}",
            f"time.time() of daemon and worker changes by {seconds:+d} s at once",
            "`gpugauge_snapshot_timestamp_seconds` follows",
            lambda _before, scrape, run: (
                abs((scrape.value("gpugauge_snapshot_timestamp_seconds") or 0) - time.time() - run.clock_offset) < 3
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
        finally_=lambda _before, _scrape, run: len(run.log()) < 5000,
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
        '`gpugauge_driver_errors_total{code="worker_error"}`, `gpu_up` 0',
        every(rises("gpugauge_driver_errors_total", code="worker_error"), device_down(0, 1, 2)),
        _no_memory_for_the_worker,
        setting=Setting(faults=[{"call": "nvmlDeviceGetUtilizationRates", "leak": "3MiB", "while_exists": "{}/fault"}]),
        lasts=8,
    ),
    *(
        Fault(
            name,
            f"standard error is {place}, and there is something to say (a killed worker)",
            f"`{RESTARTS}`",
            RESTARTED,
            signalled(signal.SIGKILL),
            setting=Setting(log=log),
            quick=True,
        )
        for name, place, log in (
            ("the log's disk is full", "/dev/full", "/dev/full"),
            ("nobody reads the log", "a full pipe from the start", FULL_PIPE),
        )
    ),
    Fault(
        "the kernel kills the worker for its memory",
        "a library that leaks, in a cgroup of 192 MiB with the daemon",
        f"`{RESTARTS}`",
        RESTARTED,
        setting=Setting(
            faults=[{"call": "nvmlDeviceGetUtilizationRates", "leak": "60MiB", "while_exists": "{}/fault"}],
            flags=[f"--driver.worker-max-bytes={1 << 30}"],
            memory=192 << 20,
            tasks=128,
        ),
        finally_=_killed_by_kernel,
    ),
    *(
        Fault(
            f"a named pipe in the place of {what}",
            "SIGHUP; the read of a pipe that nobody writes to waits; then the file is back, SIGHUP",
            f"`{metric}` 0, the log with the file",
            every(shows(metric, 0), logs(name)),
            _pipe_in_place_of(name),
            setting=setting,
            lasts=8,
            finally_=shows(metric, 1),
        )
        for what, name, metric, setting in (
            (
                "the settings",
                "settings.yaml",
                _RELOAD,
                Setting(files={"settings.yaml": "{}\n"}, flags=["--config.file={}/settings.yaml"]),
            ),
            ("the users", "web.yaml", _WEB_RELOAD, Setting(users=True)),
            ("the TLS key", "server.key", _WEB_RELOAD, Setting(users=True, tls=True)),
        )
    ),
    Fault(
        "settings broken on reload",
        "an unknown key, SIGHUP; then a good file, SIGHUP",
        "`gpugauge_config_last_reload_successful` 0, the log with file, line and key",
        every(shows(_RELOAD, 0), logs("sampling.interval_seconds")),
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
)
