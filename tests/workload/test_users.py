from __future__ import annotations

import pwd
import threading
from types import SimpleNamespace

import pytest

from gpugauge.workload import users
from gpugauge.workload.users import Users, shares_host_users
from tests.sessions.hooks import until


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = []

    def getpwuid(uid: int) -> SimpleNamespace:
        looked_up.append(uid)
        if uid != 1000:
            raise KeyError(uid)
        return SimpleNamespace(pw_name="alice")

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    names = Users(known=True)

    assert [names.name(uid) for uid in (1000, 1000, 2000, 0)] == ["alice", "alice", "2000", "root"]
    assert looked_up == [1000, 2000]
    # Without the user database of the host.
    assert [Users(known=False).name(uid) for uid in (1000, 0)] == ["1000", "root"]


def test_hanging_directory_service_loses_the_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def getpwuid(uid: int) -> SimpleNamespace:
        answer.wait(20)
        return SimpleNamespace(pw_name=f"user{uid}")

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    monkeypatch.setattr(users, "_LOOKUP_WAIT_SECONDS", 0.01)
    names = Users(known=True)

    assert [names.name(1000), names.name(2000)] == ["1000", "2000"]
    answer.set()
    until(lambda: names._lookup.running is None)
    assert names.name(1000) == "user1000"


def test_container_does_not_share_the_users_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "_IN_CONTAINER", ())
    for variable in ("KUBERNETES_SERVICE_HOST", "container"):
        monkeypatch.delenv(variable, raising=False)
    assert shares_host_users()

    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert not shares_host_users()

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    monkeypatch.setattr(users, "_IN_CONTAINER", ("/proc/self",))
    assert not shares_host_users()
