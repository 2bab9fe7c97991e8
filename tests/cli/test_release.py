from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpugauge.cli.main import main
from tests.drawn import cases


class Server(HTTPServer):
    """Records each POST, and answers with `answer`, or with 401 to one without a login if `login_needed`."""

    answer = (200, b"the driver is free")
    login_needed = False
    received: list[tuple[str, str | None]]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        login = self.headers.get("Authorization")
        self.server.received.append((self.path, login))
        refused = self.server.login_needed and login is None
        status, body = (401, b"a login is needed") if refused else self.server.answer
        self.send_response(status)
        if refused:
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as made:
        made.received = []
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("HOME", str(tmp_path))
    with serving() as made:
        yield made


def login(home: Path, text: str = "machine 127.0.0.1 login ops password secret\n") -> None:
    (home / ".netrc").write_text(text)
    (home / ".netrc").chmod(0o600)


def run(server: Server, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, f"--url=http://127.0.0.1:{server.server_port}/"])


@cases(
    ("arguments", "path", "answer"),
    [
        (("release", "--for=1h30m"), "/-/release?for=1h30m", "the driver is free until 9:00"),
        (("attach",), "/-/attach", "the driver answers, GPUs: 8"),
        (("attach",), "/-/attach", "driver.mode=off: there is nothing to release"),
        (("forget", "GPU-a&b"), "/-/forget?uuid=GPU-a%26b", "GPU-a&b is forgotten"),
    ],
)
def test_a_command_sends_one_request_and_prints_the_answer(
    server: Server, arguments: tuple[str, ...], path: str, answer: str
) -> None:
    server.answer = (200, answer.encode())
    server.received.clear()
    result = run(server, *arguments)

    assert (result.exit_code, result.output) == (0, f"{answer}\n")
    assert server.received == [(path, None)]


@cases("body", [b"", b"{}", b"OK", b"\xff", b"<html>the driver is free"])
def test_a_server_that_is_not_gpugauge_has_done_nothing(server: Server, body: bytes) -> None:
    server.answer = (200, body)

    for arguments in (("release", "--for=10m"), ("attach",), ("forget", "GPU-a")):
        result = run(server, *arguments)

        assert result.exit_code == 1
        assert result.output.endswith(" does not answer as gpugauge does\n")


@cases(("status", "code"), [(400, 2), (403, 1), (503, 1), (401, 1)])
def test_refusal_is_one_sentence_and_a_status(server: Server, status: int, code: int) -> None:
    server.answer = (status, b"not so \x1b[31mnow\nsecond line")

    result = run(server, "attach")

    address = f"http://127.0.0.1:{server.server_port}/-/attach"
    assert (result.exit_code, result.output) == (code, f"gpugauge: {address} answers {status}: not so ?[31mnow\n")


@pytest.mark.parametrize("command", ["release --for=10m", "attach"])
def test_login_of_netrc_is_sent_only_after_a_401(server: Server, tmp_path: Path, command: str) -> None:
    login(tmp_path)

    run(server, *command.split())
    server.login_needed = True
    result = run(server, *command.split())

    assert [sent for _, sent in server.received] == [None, None, "Basic b3BzOnNlY3JldA=="]
    assert (result.exit_code, result.output) == (0, "the driver is free\n")


def test_broken_netrc_is_named(server: Server, tmp_path: Path) -> None:
    login(tmp_path, "machin 127.0.0.1\n")
    server.login_needed = True

    result = run(server, "attach")

    assert result.exit_code == 2
    assert "~/.netrc cannot be used" in result.output


@pytest.mark.parametrize("command", ["release --for=10m", "attach"])
def test_proxy_of_the_environment_receives_neither_request_nor_login(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    login(tmp_path, "default login ops password secret\n")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("urllib.request._opener", None)  # urlopen() reads the environment only once
    with serving() as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
        result = run(server, *command.split())

        assert proxy.received == []
    assert (result.exit_code, len(server.received)) == (0, 1)


def test_release_needs_a_duration() -> None:
    result = CliRunner().invoke(main, ["release"])

    assert result.exit_code == 2
    assert "--for" in result.output


@cases(("url", "code"), [("ftp://x", 2), ("http://127.0.0.1:1", 1)])
def test_unreachable_daemon(url: str, code: int) -> None:
    result = CliRunner().invoke(main, ["attach", f"--url={url}"])

    assert (result.exit_code, len(result.output.splitlines())) == (code, 1)
