from __future__ import annotations

import pwd
import threading
from types import SimpleNamespace

import pytest

from gpugauge.workload import users
from gpugauge.workload.users import Users, names_are_ours


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def getpwuid(uid: int) -> SimpleNamespace:
        asked.append(uid)
        if uid != 1000:
            raise KeyError(uid)
        return SimpleNamespace(pw_name="alice")

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    names = Users(known=True)

    assert [names.name(uid) for uid in (1000, 1000, 2000, 0)] == ["alice", "alice", "2000", "root"]
    assert asked == [1000, 2000]


def test_numbers_where_names_are_not_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="somebody else"))

    assert [Users(known=False).name(uid) for uid in (1000, 0)] == ["1000", "root"]


def test_a_directory_that_hangs_costs_the_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def getpwuid(uid: int) -> SimpleNamespace:
        answer.wait(20)
        return SimpleNamespace(pw_name=f"user{uid}")

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    monkeypatch.setattr(users, "_PATIENCE_SECONDS", 0.01)
    names = Users(known=True)

    assert [names.name(1000), names.name(2000)] == ["1000", "2000"]
    answer.set()
    thread = names._asking
    assert thread is not None
    thread.join(20)
    assert names.name(1000) == "user1000"


def test_names_of_a_container_are_not_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "_IN_CONTAINER", ())
    for variable in ("KUBERNETES_SERVICE_HOST", "container"):
        monkeypatch.delenv(variable, raising=False)
    assert names_are_ours()

    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert not names_are_ours()

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    monkeypatch.setattr(users, "_IN_CONTAINER", ("/proc/self",))
    assert not names_are_ours()
