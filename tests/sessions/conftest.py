from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpugauge.sessions.listener import Sessions
from tests.sessions.playedreceiver import playing


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Sessions]]:
    with playing(tmp_path, monkeypatch) as start:
        yield start
