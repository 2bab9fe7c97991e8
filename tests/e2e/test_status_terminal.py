"""`gpugauge status`, `top` and `doctor` in a terminal, captured with tmux: drawn nodes behind a server as a daemon."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from qa.worlds.nodes import Node, draw

from gpugauge.status.model import WASTE
from tests.doctor.daemons import answers_of, serving
from tests.drawn import seeds
from tests.e2e.programs import GPUGAUGE, wait_for
from tests.needs import need
from tests.simulation import status

pytestmark = pytest.mark.e2e


@contextmanager
def answering(node: Node) -> Iterator[str]:
    """Serve what the daemon of a node answers; yields host and port."""
    with serving(answers_of(node)) as url:
        yield url.removeprefix("http://").removesuffix("/metrics")


@contextmanager
def multiplexer(folder: Path) -> Iterator[list[str]]:
    """Yield the command of a tmux with a server of its own."""
    command = [need("tmux"), "-u", "-f", "/dev/null", "-S", str(folder / "tmux")]
    yield command
    subprocess.run([*command, "kill-server"], check=False, stderr=subprocess.DEVNULL)


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[list[str]]:
    with multiplexer(tmp_path) as command:
        yield command


def captured(tmux: list[str], folder: Path, width: int, command: str, *options: str) -> tuple[list[str], str]:
    """Return the lines that the terminal shows after a command of gpugauge, and the exit status."""
    done = folder / f"done-{width}"
    environ = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    shell = f"clear; {GPUGAUGE} {command}; echo $? >{done}; sleep 60"
    size = ["-x", str(width), "-y", "400"]
    subprocess.run([*tmux, "new-session", "-d", "-s", f"w{width}", *size, shell], env=environ, check=True)
    wait_for(lambda: done.exists() and done.read_text(), 60, "the command ends")
    capture = [*tmux, "capture-pane", "-p", *options, "-t", f"w{width}"]
    text = subprocess.run(capture, capture_output=True, text=True, check=True).stdout
    return text.rstrip("\n").splitlines(), done.read_text().strip()


def joined(tmux: list[str], width: int) -> list[str]:
    """Return the lines of the terminal; those that it has wrapped, of which there should be none, are joined."""
    capture = [*tmux, "capture-pane", "-p", "-J", "-t", f"w{width}"]
    return subprocess.run(capture, capture_output=True, text=True, check=True).stdout.rstrip("\n").splitlines()


@seeds((3, 7, 21, 33))
def test_lines_fit_the_terminal(seed: int, tmp_path: Path) -> None:
    node = draw(seed)
    facts = status(node.snapshot(), node.history())
    with answering(node) as address, multiplexer(tmp_path) as tmux:
        for width in (80, 120, 200):
            shown, code = captured(tmux, tmp_path, width, f"status --verbose --url {address}")
            assert [line.rstrip() for line in joined(tmux, width)] == [line.rstrip() for line in shown]
            assert code in ({"1", "3"} if facts["problems"] else {"0"})
            words = re.sub(r"\s+", "", "".join(shown))
            answer = "".join(c if c.isprintable() else "?" for c in facts["answer"])
            assert re.sub(r"\s+", "", answer) in words
            for gpu in node.gpus:
                assert any(re.match(rf" *{gpu.index} ", line) for line in shown)
            for program in node.programs:
                assert any(re.match(rf" {{5,}}{program.pid}  ", line) for line in shown)


def test_colours_by_meaning(tmux: list[str], tmp_path: Path) -> None:
    seeds: dict[str, int] = {}
    for seed in range(200):
        node = draw(seed)
        problems = status(node.snapshot(), node.history())["problems"]
        grave = problems and problems[0]["grave"] and problems[0]["kind"] not in WASTE
        seeds.setdefault("31" if grave else "38;5;208" if problems else "32", seed)
    assert seeds.keys() == {"31", "32", "38;5;208"}
    for number, (colour, seed) in enumerate(seeds.items()):
        with answering(draw(seed)) as address:
            shown, _ = captured(tmux, tmp_path, 100 + number, f"status --url {address}", "-e")
        assert shown[0].startswith(f"\x1b[{colour}m")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_doctor_answers_on_one_screen(tmux: list[str], tmp_path: Path, width: int) -> None:
    node, program = next(
        (node, p) for node in map(draw, range(100)) for p in node.programs if p.condition == "limited" and p.speedup
    )
    with answering(node) as address:
        command = f"doctor {program.pid} --url http://{address}/metrics --simulate idle"
        shown, code = captured(tmux, tmp_path, width, command)

    assert code == "3"  # it wastes GPU time
    assert [line.rstrip() for line in joined(tmux, width)] == [line.rstrip() for line in shown]
    assert len(shown) <= 40
    assert shown.index("What to change") <= 24
    assert f"[{program.cause}]" in "".join(shown)
    assert "→ steps" in "".join(shown)


def test_top_at_three_widths_until_q(tmux: list[str], tmp_path: Path) -> None:
    node = draw(7)
    facts = status(node.snapshot(), node.history())
    # As a program with readline leaves its children.
    size_of_the_start = {"COLUMNS": "80", "LINES": "24"}
    environ = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **size_of_the_start}

    def lines(width: int) -> list[str]:
        command = [*tmux, "capture-pane", "-p", "-t", f"top{width}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    def has_processes(width: int) -> bool:
        return {str(p.pid) for p in node.programs} <= {word for line in lines(width) for word in line.split()[:1]}

    with answering(node) as address:
        for width in (80, 120, 200):
            ended = tmp_path / f"top-{width}"
            shell = f"{GPUGAUGE} top --url {address}; echo $? >{ended}; sleep 60"
            size = ["-x", str(width), "-y", "60"]
            subprocess.run([*tmux, "new-session", "-d", "-s", f"top{width}", *size, shell], env=environ, check=True)
        for width in (80, 120, 200):
            wait_for(partial(has_processes, width), 60, "top shows processes")
            shown = lines(width)
            assert facts["answer"][:30] in shown[0]
            subprocess.run([*tmux, "send-keys", "-t", f"top{width}", "q"], check=True)
            ended = tmp_path / f"top-{width}"
            wait_for(ended.exists, 60, "q ends top")
            wait_for(ended.read_text, 60, "its exit status")
            assert ended.read_text() == "0\n"
