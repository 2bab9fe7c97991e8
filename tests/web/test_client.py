from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import bcrypt
import pytest

from gpugauge.cli.status import fetch
from gpugauge.web import client
from gpugauge.web.client import RequestError, UnreachableError
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


def get(url: str, *, timeout_seconds: float = 10, max_bytes: int = 1000) -> bytes:
    return client.request(url, timeout_seconds=timeout_seconds, max_bytes=max_bytes)


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Run a server on which each request is answered by a function; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def do_POST(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_login_comes_from_netrc(home: Path, url: str) -> None:
    netrc(home, "machine 127.0.0.1 login alice password secret\n")

    assert get(f"{url}/metrics") == b"up 1\n"


@pytest.mark.parametrize(
    "text", ["machine 127.0.0.1 login alice password wrong\n", "machine 10.0.0.1 login alice password secret\n", None]
)
def test_401_without_the_right_login(home: Path, url: str, text: str | None) -> None:
    if text:
        netrc(home, text)

    with pytest.raises(RequestError, match=r"/metrics answers 401: a user name and a password are needed here$"):
        get(f"{url}/metrics")


def test_broken_netrc_is_named(home: Path, url: str) -> None:
    netrc(home, "machin 127.0.0.1\n")

    with pytest.raises(RequestError, match=r"~/\.netrc cannot be used: bad toplevel token 'machin'"):
        fetch(url)


def test_login_is_not_sent_without_a_401(home: Path) -> None:
    netrc(home, "machine 127.0.0.1 login alice password secret\n")
    logins = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        logins.append(request.headers.get("Authorization"))
        request.send_response(200)
        request.end_headers()

    with answering(answer) as address:
        get(address)
        client.request(address, "POST", timeout_seconds=10, max_bytes=1000)

    assert logins == [None, None]


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_proxy_of_the_environment_receives_nothing(variable: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc(home, "default login alice password secret\n")
    received = []

    def proxy(request: BaseHTTPRequestHandler) -> None:
        received.append((request.path, request.headers.get("Authorization")))
        request.send_response(401)
        request.send_header("WWW-Authenticate", 'Basic realm="x"')
        request.end_headers()

    def daemon(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b"here")

    for name in ("no_proxy", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
    with answering(proxy) as proxy_address, answering(daemon) as address:
        monkeypatch.setenv(variable, proxy_address)
        assert get(address) == b"here"
        assert client.request(address, "POST", timeout_seconds=10, max_bytes=1000) == b"here"

    assert received == []


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("file:///etc/passwd", "file:///etc/passwd: the address begins with http:// or https://"),
        ("127.0.0.1:10478", "127.0.0.1:10478: the address begins with http:// or https://"),
        ("http://", "http://: an address is written http://127.0.0.1:10478"),
        ("http://[::1", "http://[::1: an address is written http://127.0.0.1:10478"),
        ("http://h:99999/", "http://h:99999/: an address is written http://127.0.0.1:10478"),
        ("http://h/\x1b[2J", "http://h/?[2J: an address is written http://127.0.0.1:10478"),
        ("http://alice:secret@h/", "user and password belong in ~/.netrc, not in the address"),
    ],
)
def test_unusable_address_is_a_wrong_request(address: str, sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        get(address)

    assert (str(caught.value), caught.value.wrong_request) == (sentence, True)


def test_unreachable() -> None:
    with pytest.raises(UnreachableError, match=r"^http://127.0.0.1:1/ does not answer \(Connection refused\)$"):
        get("http://127.0.0.1:1/")


def test_refusal_is_one_printable_line() -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(503)
        request.end_headers()
        request.wfile.write(b"not \x1b[31mnow\nsecond line")

    with answering(answer) as address, pytest.raises(RequestError) as caught:
        get(address)

    assert str(caught.value) == f"{address} answers 503: not ?[31mnow"
    assert not caught.value.wrong_request


def test_redirect_to_another_scheme_is_not_followed() -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", "ftp://127.0.0.1:1/")
        request.end_headers()

    with answering(answer) as address, pytest.raises(RequestError, match="unknown url type: ftp"):
        get(address)


def test_size_is_bounded() -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b"x" * 100)

    with answering(answer) as address:
        assert len(get(address, max_bytes=100)) == 100
        with pytest.raises(RequestError, match="does not answer as gpugauge does: more than 99 bytes"):
            get(address, max_bytes=99)


def test_time_is_bounded_although_bytes_arrive() -> None:
    stop = threading.Event()

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        while not stop.wait(0.05):
            request.wfile.write(b"x")

    with answering(answer) as address:
        begin = time.monotonic()
        with pytest.raises(RequestError, match=r"does not answer within 0\.3 s"):
            get(address, timeout_seconds=0.3)
        took = time.monotonic() - begin
        stop.set()

    assert took < 5


def test_answer_that_is_no_http() -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"SSH-2.0\r\n")

    said = r"does not answer as gpugauge does: SSH-2\.0"
    with answering(answer) as address, pytest.raises(RequestError, match=said):
        get(address)
