from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpugauge.sessions import listener as listeners
from gpugauge.sessions.listener import Sessions
from tests.sessions.playedreceiver import Played


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Sessions]]:
    """Start listeners whose receivers the test plays."""
    monkeypatch.setattr(Played, "made", [], raising=False)
    monkeypatch.setattr(subprocess, "Popen", Played)
    monkeypatch.setattr(listeners, "SWEEP_INTERVAL_SECONDS", 0.01)
    started: list[Sessions] = []

    def start(inherited: socket.socket | None = None, **options: Any) -> Sessions:
        started.append(Sessions(str(tmp_path / "hook.sock"), **options))
        started[-1].start(inherited)
        return started[-1]

    yield start
    for one in started:
        one.stop()
    for played in Played.made:
        played.channel.close()
