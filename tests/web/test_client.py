from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from gpugauge.cli.status import StatusError, fetch
from gpugauge.web.client import opener
from gpugauge.web.config.access import WebAccess
from gpugauge.web.server import Route, Server, sentence


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yml").write_text(f"basic_auth_users:\n  alice: {hashed}\n")
    routes = {"/metrics": Route(lambda _: sentence(200, "up 1"))}
    server = Server([("127.0.0.1", 0)], routes, access=WebAccess(tmp_path / "web.yml"))
    server.start()
    yield "http://{}:{}".format(*server.addresses[0])
    server.stop()


def netrc(home: Path, text: str) -> None:
    (home / ".netrc").write_text(text)
    (home / ".netrc").chmod(0o600)


def test_the_login_comes_from_netrc(home: Path, url: str) -> None:
    netrc(home, "machine 127.0.0.1 login alice password secret\n")

    with opener().open(f"{url}/metrics", timeout=10) as response:
        assert response.read() == b"up 1\n"


@pytest.mark.parametrize(
    "text", ["machine 127.0.0.1 login alice password wrong\n", "machine 10.0.0.1 login alice password secret\n", None]
)
def test_without_the_right_one_it_is_401(home: Path, url: str, text: str | None) -> None:
    if text:
        netrc(home, text)

    with pytest.raises(urllib.error.HTTPError) as caught:
        opener().open(f"{url}/metrics", timeout=10)
    caught.value.close()
    assert caught.value.code == 401


def test_a_file_that_cannot_be_used_is_told(home: Path, url: str) -> None:
    netrc(home, "machin 127.0.0.1\n")

    with pytest.raises(StatusError, match=r"~/\.netrc cannot be used: bad toplevel token 'machin'"):
        fetch(url)
