"""Commands in drawn surroundings: locales, full disks, umasks, folders, and servers that are not gpugauge."""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.drawn import cases, seeds

from gpugauge.cli.main import _COMMANDS, main
from gpugauge.cli.top import command as top
from gpugauge.driver.vendors import VENDORS
from gpugauge.terminal import reply
from gpugauge.terminal.screen import chosen, gpu_details, gpu_lines, process_lines
from gpugauge.web.page.links import parts
from qa.worlds.nodes import world

DOCUMENTS = (
    "rules",
    "rules --explain",
    "dashboards node",
    "dashboards --inputs job",
    "metrics",
    "metrics --format json",
)
LOCALES = (
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-16"},
    {"LANG": "de_DE.ISO-8859-1", "PYTHONIOENCODING": "cp1252"},
)


def gpugauge(command: str, out: int, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, "-m", "gpugauge", *command.split()]
    # The same interpreter, and no locale of the machine.
    plain = {"PATH": os.environ["PATH"], "COLUMNS": "120"}
    return subprocess.run(
        words, env=plain | (environ or {}), stdout=out, stderr=subprocess.PIPE, check=False, timeout=60
    )


@seeds(range(10))
def test_a_document_is_in_utf_8_under_every_locale(seed: int) -> None:
    command, environ = DOCUMENTS[seed % len(DOCUMENTS)], LOCALES[seed % len(LOCALES)]
    usual = gpugauge(command, subprocess.PIPE, {"LC_ALL": "C.UTF-8"})
    found = gpugauge(command, subprocess.PIPE, environ)

    assert (found.returncode, found.stderr) == (0, b"")
    assert found.stdout == usual.stdout
    assert found.stdout.decode()


@seeds(range(10))
def test_a_full_disk_ends_a_command_in_one_sentence(seed: int) -> None:
    command = (*DOCUMENTS, "scenarios", "--help", "--version", "serve --help")[seed]
    with Path("/dev/full").open("wb") as full:
        found = gpugauge(command, full.fileno())

    assert found.stderr == b"gpugauge: standard output: No space left on device\n"
    assert found.returncode == 1


@seeds(range(100))
def test_the_exported_hook_can_be_read_by_all(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    here = tmp_path / "p" / "q" / "r"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    name = "/".join(draw.choices(("a", "b c", "ü", ".", "..", "x:y"), weights=(4, 2, 2, 1, 1, 1), k=draw.randint(1, 3)))
    folder = draw.choice((name, f"{here}/{name}", "" if draw.random() < 0.2 else name))
    os.umask(before := os.umask(0))
    try:
        os.umask(draw.choice((0, 0o002, 0o022, 0o027, 0o077)))
        if draw.random() < 0.3:
            Path("a").mkdir(mode=0o750)
        known = {path: path.stat().st_mode for path in (tmp_path, *tmp_path.rglob("*"))}
        done = CliRunner().invoke(main, ["export-hook", folder])
    finally:
        os.umask(before)
    made = [path for path in tmp_path.rglob("*") if path not in known]

    assert {path: path.stat().st_mode for path in known} == known
    if not folder or ":" in folder:
        assert (done.exit_code, made, done.stdout) == (2, [], "")
        return
    assert done.exit_code == 0, done.output
    printed = Path(done.stdout.rstrip("\n"))
    assert printed.is_absolute()
    assert printed == Path(folder).resolve() / "gpugauge" / "hook" / "bootstrap"
    assert (printed / "sitecustomize.py").is_file()
    assert {path.stat().st_mode & 0o777 for path in made} == {0o755, 0o644}


def changed(value: Any, draw: random.Random) -> Any:
    """Return a document with one part left out, or of another type."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(sorted(value))
        if draw.random() < 0.3:
            return {name: part for name, part in value.items() if name != key}
        return value | {key: changed(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.9:
        place = draw.randrange(len(value))
        return [*value[:place], changed(value[place], draw), *value[place + 1 :]]
    return draw.choice([None, "", "x", 0, -1, 1e300, [], {}, [None], {"a": 1}, True])


@seeds(range(200))
def test_no_answer_leads_to_a_traceback(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    _, facts = world(draw.randrange(12))
    for _ in range(draw.choice((0, 1, 1, 1, 5))):
        facts = changed(facts, draw)
    body = draw.choice(
        [b"", b"[" * 100_000, b"\xff", b'{"gpus": []}', b'{"gpus": [{"index": 0}]}', *[json.dumps(facts).encode()] * 20]
    )
    monkeypatch.setattr("gpugauge.terminal.reply.request", lambda *_, **__: body)
    for arguments in (["status"], ["status", "--json"]):
        done = CliRunner().invoke(main, arguments)

        assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
        assert (done.exit_code == 2) is (reply.read(body) is None)
        drawn_by_top(reply.read(body))
        assert done.exit_code != 2 or "does not answer as gpugauge does" in done.stderr


def drawn_by_top(found: reply.Reply | None) -> None:
    """Draw what `gpugauge top` shows, if an answer is one that can be drawn."""
    if found:
        now, shown = found.status.timestamp, chosen(found.status, "lost", False, "")
        _ = gpu_lines(found.status, 200), [gpu_details(gpu) for gpu in found.status.gpus]
        process_lines(shown, now, 200)


@seeds(range(60))
def test_a_mistyped_command_names_the_nearest(seed: int) -> None:
    draw = random.Random(seed)
    name = draw.choice(_COMMANDS)
    place = draw.randrange(1, len(name))
    wrong = draw.choice((name[:place] + name[place + 1 :], name[:place] + name[place - 1 :], name + draw.choice("sxe")))
    found = CliRunner().invoke(main, [wrong, "--json"])

    assert found.exit_code == 2
    assert wrong in _COMMANDS or f"no such command '{wrong}'; did you mean {name}?" in found.stderr
    assert "did you mean" not in CliRunner().invoke(main, ["zzz"]).stderr


@cases("words", ["status", "top", "attach", "release --for 1m", "forget GPU-a"])
def test_an_address_without_its_option_is_named(words: str) -> None:
    for address, url in (
        ("node7", "http://node7:10478"),
        ("[::1]:9100", "http://[::1]:9100"),
        ("https://n", "https://n"),
    ):
        found = CliRunner().invoke(main, [*words.split(), address])

        assert found.exit_code == 2
        assert f"unexpected argument '{address}'; did you mean --url {url}?" in found.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_top_ends_with_the_status_of_its_application(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of textual that lacks what top needs ends the application with 1, and no exception."""
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setattr("gpugauge.terminal.top.Top.run", lambda self: setattr(self, "_return_code", 1))
    assert top.callback is not None
    with pytest.raises(SystemExit, match="1"):
        top.callback(url="http://127.0.0.1:1", mine=False)


@seeds(range(12))
def test_an_answer_of_this_version_is_read(seed: int) -> None:
    facts = json.loads(json.dumps(world(seed)[1]))

    found = reply.read(json.dumps(facts).encode())

    assert found
    assert found.document == facts


def test_a_command_of_a_vendor_is_one_button() -> None:
    """What a button of the page copies is the whole command; a list in it does not end it."""
    commands = [words.format(index=3) for vendor in VENDORS for words in vendor.words.values()]
    commands = [words for words in commands if words.split()[:1] in ([vendor.tool] for vendor in VENDORS)]

    assert len(commands) > 8
    assert {words: [*parts(words)] for words in commands} == {
        words: [("", False), (words, True), ("", False)] for words in commands
    }


@seeds(range(30))
def test_each_name_of_rules_that_is_accepted_is_that_of_an_object(seed: int) -> None:
    draw = random.Random(seed)
    name = "".join(draw.choices("ab_Z9-.", weights=(5, 3, 3, 2, 2, 0.3, 0.3), k=draw.choice((1, 2, 5, 300))))
    done = CliRunner().invoke(main, ["rules", "--format", "kubernetes", "--name", name])

    assert done.exit_code in {0, 2}
    if done.exit_code == 0:
        (shown,) = re.findall(r"^  name: (\S+)$", done.stdout, re.MULTILINE)
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,251}[a-z0-9])?", shown.strip("'"))
    assert done.exit_code == 0 or not re.fullmatch(r"[a-zA-Z]([a-zA-Z0-9_]{0,100}[a-zA-Z0-9])?", name)


def test_settings_are_checked_without_a_daemon(tmp_path: Path) -> None:
    def serve(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["serve", *arguments])

    wrong = ("--metrics.exclude", "gpu_pwr*", "--simulate", "nod", "--web.config.file", str(tmp_path / "web.yaml"))
    found, valid = serve("--config.check", *wrong), serve("--config.check", "--simulate", "node")

    assert (valid.exit_code, valid.output) == (0, "The settings are valid.\n")
    assert found.exit_code == serve("--config.check", "--log.level", "loud").exit_code == 2
    sentences = ("metrics.exclude: no metric matches", f"{tmp_path}/web.yaml: cannot be read", "no scenario 'nod'")
    assert all(words in line for words, line in zip(sentences, found.output.splitlines(), strict=True))
