"""Rows for attacks of a user without rights, who has a uid and a cgroup of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from qa.torture.fault import Fault, Inject, Sign
from qa.torture.honest import FIRST_NEWCOMER
from qa.torture.hostile_faults import REJECTED, honest, training
from qa.torture.scrape import Scrape, Scraper
from qa.torture.signs import every, rises
from qa.torture.subject import Setting, Subject, header_of
from qa.torture.users import reused
from qa.torture.users.at_port import ADDRESSES
from qa.torture.users.attacks import attacked
from qa.torture.users.groups import memory_of, processes

LIMIT_BYTES, MAX_TASKS = 512 << 20, 128  # MemoryMax= and TasksMax= of the unit
LIMITED = Setting(devices=2, memory=LIMIT_BYTES, tasks=MAX_TASKS)
_NEWCOMER_SECONDS = 5.0  # until it is shown
_MIN_NEWCOMERS = 8
_LOGIN_SECONDS = 5.0
_BANS = "gpugauge_hook_bans"


def _by_user(*names: str, newcomers: bool = False) -> Inject:
    """Return an injection of attacks beside a correct training."""

    @contextlib.contextmanager
    def inject(run: Subject) -> Iterator[None]:
        with training(run, *([str(run.folder / "newcomers")] if newcomers else [])), attacked(run, names):
            yield

    return inject


def _banned(_before: Scrape, scrape: Scrape, _run: Subject) -> bool:
    return (scrape.value(_BANS) or 0) >= 1


def _within_limits(_before: Scrape, _scrape: Scrape, run: Subject) -> bool:
    """Return whether the kernel has killed nothing, all tasks could be started, and the memory is below the limit."""
    assert run.limits
    resident = memory_of(processes(run.pid))[1]
    return (
        run.limits.memory_events()["oom_kill"] == 0
        and run.limits.refused_tasks() == 0
        and resident < LIMIT_BYTES / (1 << 20)
    )


@contextlib.contextmanager
def _slow_receiver(run: Subject) -> Iterator[None]:
    """Stop the receiver most of the time, so that processes have ended when it accepts their connections."""
    stop, receiver = threading.Event(), run.receiver()
    assert receiver

    def hold() -> None:
        while not stop.wait(0.3):
            os.kill(receiver, signal.SIGSTOP)
            time.sleep(1.7)
            os.kill(receiver, signal.SIGCONT)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        with _by_user("gone peers")(run):
            yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def _pid_reused(run: Subject) -> Iterator[None]:
    command = [sys.executable, "-m", "qa.torture.users.reused", run.hook, str(run.receiver())]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        try:
            if process.stdout.readline() != b"begun\n":
                raise RuntimeError("no process got the pid")
            yield
        finally:
            process.kill()


def _own_figures(_before: Scrape, scrape: Scrape, _run: Subject) -> bool:
    """Return whether both trainings that got a used pid are shown, and beside them the figures of the user twice."""
    steps = [value for _, value in scrape.of("torch_steps_total")]
    return honest(_before, scrape, _run) and [steps.count(n) for n in (reused.OTHER_STEPS, reused.FORGED)] == [1, 2]


def _newcomers_shown(_before: Scrape, scrape: Scrape, run: Subject) -> bool:
    """Return whether the scrape has every training that began at least five seconds before it."""
    steps = {value for _, value in scrape.of("torch_steps_total")}
    lines = [line.split() for line in (run.folder / "newcomers").read_text().splitlines()]
    return all(float(n) in steps for n, at in lines if scrape.began - float(at) > _NEWCOMER_SECONDS)


def _newcomers_attributed(_before: Scrape, scrape: Scrape, run: Subject) -> bool:
    """Return whether every training that began at least five seconds before the scrape has its job."""
    steps = {labels["process"]: value for labels, value in scrape.of("torch_steps_total")}
    jobs = {labels["process"]: labels["workload_job"] for labels, _ in scrape.of("torch_process_info")}
    found = {value for process, value in steps.items() if jobs.get(process)}
    lines = [line.split() for line in (run.folder / "newcomers").read_text().splitlines()]
    return all(float(n) in found for n, at in lines if scrape.began - float(at) > _NEWCOMER_SECONDS)


def _many_newcomers_shown(before: Scrape, scrape: Scrape, run: Subject) -> bool:
    return (FIRST_NEWCOMER + _MIN_NEWCOMERS) in {v for _, v in scrape.of("torch_steps_total")} and _newcomers_shown(
        before, scrape, run
    )


def _kept_connection(_before: Scrape, scrape: Scrape, _run: Subject) -> bool:
    return not scrape.again


@contextlib.contextmanager
def local_addresses() -> Iterator[None]:
    """Make the addresses of the guessers addresses of this machine."""
    words = ["local", ADDRESSES, "dev", "lo"]
    subprocess.run(["ip", "route", "replace", *words], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "route", "del", *words], check=True)


@contextlib.contextmanager
def _guessed(run: Subject) -> Iterator[None]:
    """Guess passwords from 20 addresses. Other users log in the first time, from unknown addresses."""
    stop = threading.Event()

    def log_in() -> None:
        number = 0
        while not stop.wait(1.0):
            number += 1
            began = time.monotonic()
            status = ""
            while status != "200" and time.monotonic() < began + 2 * _LOGIN_SECONDS:
                scraper = Scraper(run.port, header_of(f"user{number}"), source=f"198.19.{number}.1")
                scrape = scraper.scrape()
                status = scrape.error or "200"
                scraper.close()
            with (run.folder / "logins").open("a") as lines:
                lines.write(f"{status} {time.monotonic() - began}\n")

    thread = threading.Thread(target=log_in)
    with local_addresses(), attacked(run, ["wrong passwords", "wrong passwords from this machine"]):
        time.sleep(2)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _logged_in(_before: Scrape, _scrape: Scrape, run: Subject) -> bool:
    """Return whether all of these users have logged in within five seconds."""
    lines = [line.rsplit(maxsplit=1) for line in (run.folder / "logins").read_text().splitlines()]
    return len(lines) >= _MIN_NEWCOMERS and all(s == "200" and float(at) < _LOGIN_SECONDS for s, at in lines)


def _hook(name: str, how: str, reported_by: str, sign: Sign, inject: Inject, **more: object) -> Fault:
    return Fault(
        f"hook: {name}",
        how,
        f"`{reported_by}`" if reported_by else "",
        every(sign, honest),
        inject,
        **{"setting": LIMITED, "during": honest, "finally_": _within_limits, "lasts": 8.0, **more},  # type: ignore[arg-type]  # fields by name
    )


FAULTS: tuple[Fault, ...] = (
    _hook(
        "lingering descriptors",
        "another user's TCP sockets with SO_LINGER and a full queue: in a message, and queued on an ended connection",
        _BANS,
        _banned,
        _by_user("lingering descriptors"),
    ),
    _hook(
        "FUSE descriptors",
        "another user's file of a FUSE file system in a user namespace, whose close is never answered: state D",
        _BANS,
        _banned,
        _by_user("FUSE descriptors"),
    ),
    _hook(
        "FUSE descriptors of 112 users",
        "as many uids as a user may have in a user namespace, under the unit's `TasksMax=128`",
        'gpugauge_hook_receiver_replacements_total{reason="blocked"}',
        rises("gpugauge_hook_receiver_replacements_total", reason="blocked"),
        _by_user("FUSE descriptors of many users"),
        lasts=25.0,
        report_within=15.0,
    ),
    _hook(
        "maximal snapshots",
        "another user's 1,024 sessions of all devices and parameters, under the unit's `MemoryMax=512M`",
        "gpugauge_hook_sessions_cut_total",
        rises("gpugauge_hook_sessions_cut_total"),
        _by_user("maximal snapshots"),
        lasts=20.0,
        report_within=15.0,
        delayed=100,
    ),
    _hook(
        "gone peers",
        "1,500 connections of processes that have ended when the receiver, which is stopped meanwhile, accepts them",
        f'{REJECTED}{{reason="connections"}}',
        rises(REJECTED, reason="connections"),
        _slow_receiver,
        report_within=30.0,
        lasts=20.0,
    ),
    _hook(
        "a pid is used again",
        "a training gets the pid of another user's process that has connected and ended (`ns_last_pid`)",
        "",
        _own_figures,
        _pid_reused,
        during=_own_figures,
    ),
    _hook(
        "newcomers behind 1,000 busy clients",
        "another user's sessions report without a pause, others come and go; each second another training begins",
        "",
        _many_newcomers_shown,
        _by_user("busy clients", newcomers=True),
        during=every(honest, _newcomers_shown),
        report_within=30.0,
        lasts=20.0,
        delayed=100,
    ),
    _hook(
        "newcomers behind 65,536 users",
        "connections of one user's range of uids come and go without a pause; each second another training begins",
        f'{REJECTED}{{reason="connect_rate"}}',
        every(rises(REJECTED, reason="connect_rate"), _many_newcomers_shown),
        _by_user("connections of many users", newcomers=True),
        during=every(honest, _newcomers_shown),
        report_within=30.0,
        lasts=20.0,
        delayed=100,
    ),
    _hook(
        "newcomers beside all connections",
        "two other users hold as many sessions as they may have; each second another training begins",
        f'{REJECTED}{{reason="connections"}}',
        every(rises(REJECTED, reason="connections"), _many_newcomers_shown),
        _by_user("all connections", "all connections", newcomers=True),
        during=every(honest, _newcomers_shown),
        report_within=40.0,
        lasts=20.0,
        delayed=100,
    ),
    _hook(
        "trainings that hold the lock of their memory",
        "three other users map a file of a FUSE file system that does not answer: reads of their `/proc` hang; each "
        "second another training begins, and has its job",
        "",
        every(_many_newcomers_shown, _newcomers_attributed),
        _by_user(*["held memory"] * 3, newcomers=True),
        setting=Setting(devices=2, real=True, memory=LIMIT_BYTES, tasks=MAX_TASKS),
        during=every(honest, _newcomers_shown, _newcomers_attributed),
        report_within=30.0,
        lasts=20.0,
        delayed=100,
    ),
    Fault(
        "port: wrong passwords",
        "from 20 addresses and from this machine without a pause; other users log in for the first time meanwhile",
        inject=_guessed,
        setting=Setting(devices=2, users=True),
        lasts=15,
        during=_kept_connection,
        finally_=_logged_in,
    ),
    Fault(
        "port: 600 connections collect a 401",
        "each every 2 s, more than `web.max_connections`; the scraper keeps the connection over which it has logged in",
        inject=_by_user("401 collectors"),
        setting=Setting(devices=2, users=True),
        lasts=15,
        during=_kept_connection,
    ),
)
