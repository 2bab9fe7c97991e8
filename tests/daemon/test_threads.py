"""Every thread of the daemon whose work is broken: the health shows it, and it goes on once the work is mended."""

from __future__ import annotations

import asyncio
import pwd
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import bcrypt
import pytest

from gpugauge.base import guard
from gpugauge.base.guard import Background
from gpugauge.daemon.app import _Daemon
from gpugauge.daemon.assembly import Parts
from gpugauge.daemon.reload import Reloader
from gpugauge.daemon.sampler import Sampler
from gpugauge.daemon.trainings import TrainingsFile
from gpugauge.driver.supervisor import Supervisor
from gpugauge.sessions.listener import Sessions
from gpugauge.settings.model import Settings
from gpugauge.web.config.access import WebAccess
from gpugauge.web.config.users import Login, Logins
from gpugauge.web.connections import Listener
from gpugauge.web.server import Server
from gpugauge.workload.orchestrators import Orchestrators
from gpugauge.workload.registry import Identity, Registry, Want
from gpugauge.workload.users import Users
from tests.contract import SOURCE
from tests.daemon.test_sampler import reader, values
from tests.drawn import cases
from tests.driver.fakeworker import INTERVALS, Node
from tests.sessions.hooks import until
from tests.website import USERS

Poke = Callable[[], object]
LOGIN = Login(b"a", b"b")


class Panic(BaseException):
    """As of a library in Rust."""


@pytest.fixture(autouse=True)
def logs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave caplog in place, also while a thread of the case before still reloads."""
    monkeypatch.setattr("gpugauge.daemon.logs.setup", lambda *_: None)


def idle() -> None:
    """Do nothing."""


def started(part: Any, stack: ExitStack) -> Poke:
    part.start()
    stack.callback(part.stop)
    return idle


def sampling(_: Path, stack: ExitStack) -> Poke:
    made, stop = Sampler([], reader, lambda _: None, 0.01), threading.Event()
    thread = threading.Thread(target=made.run, args=[stop], daemon=True)
    stack.callback(stop.set)
    thread.start()
    return idle


def watching(_: Path, stack: ExitStack) -> Poke:
    stop: Any = threading.Event()
    stack.callback(stop.set)
    parts: Any = SimpleNamespace(settings=Settings(), forecast=None, sessions=None)
    soon: Any = SimpleNamespace(wait=lambda _: stop.wait(0.01))
    daemon = _Daemon(parts, stack, soon, threading.Event())
    guard.Loop("watchdog", daemon._watch, stop).start()
    return idle


def web_config(folder: Path, stack: ExitStack) -> Poke:
    (folder / "web.yml").write_text(USERS)
    return started(WebAccess(folder / "web.yml"), stack)


def reloading(_: Path, stack: ExitStack) -> Poke:
    made = Reloader(Settings(), Settings)
    made.start(lambda _: None)
    stack.callback(made.stop)
    return made.request


def checking(_: Path, __: ExitStack) -> Poke:
    logins, users = Logins(), {b"a": bcrypt.hashpw(b"c", bcrypt.gensalt(4))}
    return lambda: asyncio.run(asyncio.wait_for(logins.verify(users, LOGIN, "a"), 10))


def looking_up(_: Path, __: ExitStack) -> Poke:
    users = Users(known=True)
    return lambda: users.name(4711)


def working(_: Path, __: ExitStack) -> Poke:
    made: Background[None] = Background("host")

    def poke() -> None:
        if made.running is None:
            made.start(idle)
            made.take()

    return poke


def asking(_: Path, __: ExitStack) -> Poke:
    made = Registry(lambda _: Identity(), lambda: 0, float)
    return lambda: made.want("host", {"a": Want(0)})


@cases(
    ("name", "owner", "broken", "start"),
    [
        ("sampler", Sampler, "tick", sampling),
        ("watchdog", _Daemon, "_watch", watching),
        ("driver", Supervisor, "_pass", lambda _, s: started(Supervisor(INTERVALS, Node("GPU-a").spawn), s)),
        ("driver", Supervisor, "_down", lambda _, s: started(Supervisor(INTERVALS, Node(1).spawn), s)),
        ("gpugauge-sessions", Sessions, "_turn", lambda f, s: started(Sessions(str(f / "hook.sock")), s)),
        ("orchestrators", Orchestrators, "refresh", lambda _, s: started(Orchestrators(None, None, None, str), s)),
        ("http-server", Listener, "close_overdue", lambda _, s: started(Server([("127.0.0.1", 0)], {}), s)),
        ("web-config", WebAccess, "check", web_config),
        ("reload", Reloader, "_handle", reloading),
        ("bcrypt", bcrypt, "checkpw", checking),
        ("users", pwd, "getpwuid", looking_up),
        ("host", Background, "_turn", working),
        ("registry", Registry, "_turn", asking),
        ("trainings", TrainingsFile, "_turn", lambda _, s: started(TrainingsFile(None, lambda: None), s)),
    ],
)
def test_a_thread_whose_work_fails_is_reported_and_goes_on(
    name: str,
    owner: Any,
    broken: str,
    start: Callable[[Path, ExitStack], Poke],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for interval in (
        *("web.config.access._CHECK_INTERVAL", "web.server._SWEEP", "base.guard.SETTLED"),
        "base.guard.START_WAIT",  # which golden files make longer
    ):
        monkeypatch.setattr(f"gpugauge.{interval}_SECONDS", 0.01)
    monkeypatch.setattr(guard, "_FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(guard, "_failed", {})
    original, mended, raised, worked = getattr(owner, broken), threading.Event(), list[None](), list[None]()

    def work(*arguments: Any, **named: Any) -> Any:
        if not mended.is_set():
            raised.append(None)
            raise Panic("planted")
        worked.append(None)
        return original(*arguments, **named)

    def is_failing() -> bool:
        """Return whether `/-/ready` says so."""
        return name in Parts._note(cast("Any", SimpleNamespace(_hook=None)))

    monkeypatch.setattr(owner, broken, work)
    with ExitStack() as stack:
        poke = start(tmp_path, stack)

        def until_poked(condition: Callable[[], bool]) -> None:
            def poked() -> bool:
                poke()
                return condition()

            until(poked)

        until_poked(lambda: len(raised) > 2 and is_failing())
        mended.set()
        until_poked(lambda: len(worked) > 0 and not is_failing())
    assert caplog.text.count("a thread of the daemon failed, it goes on") == 1


def test_the_health_has_threads_once_they_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_failed", {})
    made, thread = Sampler([], reader, lambda _: None, 1.0), guard.Guard("driver")
    before = made.tick(1.0, 1.0)
    thread.record(Panic("planted"))
    failing = made.tick(2.0, 2.0)
    monkeypatch.setattr(guard, "SETTLED_SECONDS", 0.0)
    thread.run(idle)
    after = made.tick(3.0, 3.0)

    name = "gpugauge_collector_success"
    label = ("driver thread",)
    assert label not in values(before, name)
    assert (values(failing, name)[label], values(after, name)[label]) == (0, 1)
    assert failing.health["driver thread"].error == "Panic: planted"


def test_the_errors_of_a_thread_are_counted_on_by_the_one_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_failed", {})
    for failures in (1, 2, 3):
        thread = guard.Guard("registry")
        thread.record(Panic("planted"))
        assert [each.failures for each in guard.failed()] == [failures]


def test_threads_are_started_where_their_errors_are_seen() -> None:
    starts = ("threading.Thread(", " Thread(", "start_new_thread(", "PoolExecutor(")
    found = {
        f"{file.relative_to(SOURCE)}" for file in SOURCE.rglob("*.py") if any(s in file.read_text() for s in starts)
    }

    own_errors = {"web/server.py", "sessions/receiver/closing.py"}
    of_the_guard = {"base/guard.py"}
    of_other_programs = {"cli/settings_child.py", "deviceplugin/plugin.py", "hook/client.py"}
    assert found == own_errors | of_the_guard | of_other_programs
