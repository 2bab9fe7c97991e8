from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpugauge.cli.main import main


class Server(HTTPServer):
    """Answers every POST as told, and keeps what it was asked."""

    answer = (200, b"the driver is free")
    asked: list[tuple[str, str | None]]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        status, body = self.server.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("HOME", str(tmp_path))
    with Server(("127.0.0.1", 0), Handler) as made:
        made.asked = []
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def run(server: Server, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, f"--url=http://127.0.0.1:{server.server_port}/"])


def test_release_says_for_how_long_and_prints_the_answer(server: Server) -> None:
    result = run(server, "release", "--for=1h30m")

    assert (result.exit_code, result.output) == (0, "the driver is free\n")
    assert server.asked == [("/-/release?for=1h30m", None)]


def test_attach(server: Server) -> None:
    assert run(server, "attach").exit_code == 0
    assert server.asked == [("/-/attach", None)]


@pytest.mark.parametrize(("status", "code"), [(400, 2), (403, 1), (503, 1), (401, 1)])
def test_refusal_is_one_sentence_and_a_status(server: Server, status: int, code: int) -> None:
    server.answer = (status, b"not so \x1b[31mnow\nsecond line")

    result = run(server, "attach")

    assert (result.exit_code, result.output) == (code, "gpugauge: not so ?[31mnow\n")


def test_login_comes_from_netrc(server: Server, tmp_path: Path) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login ops password secret\n")
    netrc.chmod(0o600)

    run(server, "attach")

    assert server.asked[0][1] == "Basic b3BzOnNlY3JldA=="


def test_broken_netrc_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machin 127.0.0.1\n")

    result = run(server, "attach")

    assert result.exit_code == 2
    assert ".netrc" in result.output


def test_release_needs_an_end() -> None:
    result = CliRunner().invoke(main, ["release"])

    assert result.exit_code == 2
    assert "--for" in result.output


@pytest.mark.parametrize(("url", "code"), [("ftp://x", 2), ("http://127.0.0.1:1", 1)])
def test_no_daemon_there(url: str, code: int) -> None:
    result = CliRunner().invoke(main, ["attach", f"--url={url}"])

    assert (result.exit_code, len(result.output.splitlines())) == (code, 1)
