"""`gpugauge top` without a terminal: keys are pressed, and the lines of the screen are read."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from qa.worlds.nodes import GIB, Gpu, Node, Program, facts_of

from gpugauge.cli.top import command
from gpugauge.status.details import loss, remark
from gpugauge.status.model import GpuStatus, ProcessStatus, Status, decoded
from gpugauge.status.words import percent
from gpugauge.terminal.columns import Column, Grid
from gpugauge.terminal.reply import Feed
from gpugauge.terminal.screen import chosen, gpu_lines
from tests.needs import require

GPUS = [Gpu(f"GPU-{n}", n, "NVIDIA H100", load=0.5, power=100.0, memory=GIB) for n in range(3)]
PROGRAMS = [
    Program("p0", 100, "slow.py", "limited", ["GPU-0", "GPU-1"], "data_loading", 0.7, 0.2, GIB),
    Program("p1", 101, "good.py", "well", ["GPU-2"], load=0.9, memory=3 * GIB),
    Program("p2", 102, "stuck.py", "stalled", ["GPU-2"], load=0.0, memory=2 * GIB),
]
FACTS = facts_of(Node(GPUS, PROGRAMS))


class AwayError(Exception):
    """The daemon does not answer."""


def watched(
    answers: list[Any], steps: Callable[[Any, Any, Feed], Awaitable[None]], size: tuple[int, int] = (120, 40)
) -> None:
    """Run the application on answers of a daemon, the last of which is repeated; `steps` gets pilot, app and feed."""
    require(importlib.util.find_spec("textual") is not None, "textual is not installed (the extra top)")
    top = importlib.import_module("gpugauge.terminal.top").Top

    def fetch() -> Any:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return decoded(Status, answer)

    async def run() -> None:
        feed = Feed(fetch, AwayError, 3600.0)
        app = top(feed)
        async with app.run_test(size=size, notifications=True) as pilot:
            while feed.latest.status is None and feed.latest.trouble is None:
                await asyncio.sleep(0.01)
            await follow(pilot, app)
            while not screen(app)[-1]:  # the footer is drawn after all else
                await pilot.pause(0.01)
            await steps(pilot, app, feed)

    asyncio.run(run())


async def follow(pilot: Any, app: Any) -> None:
    app._follow()
    await pilot.pause()


def screen(app: Any) -> list[str]:
    """Return the lines that a terminal would show."""
    return ["".join(segment.text for segment in line).rstrip() for line in app.screen._compositor.render_strips()]


def rows(app: Any) -> list[str]:
    """Return the programs in the order of the list of processes."""
    options = app.query_one("#processes").options
    return [next(p.name for p in PROGRAMS if p.process == option.id) for option in options]


def test_first_the_answer_then_problems_gpus_and_processes() -> None:
    async def steps(pilot: Any, app: Any, feed: Feed) -> None:
        lines = screen(app)
        place = [next(i for i, line in enumerate(lines) if words in line) for words in (
            f"node-7: {FACTS['answer'][:40]}", "  1. ", "GPU  STATE", "3 processes, sorted by lost", "PID  GPU"
        )]  # fmt: skip
        assert place == sorted(place)
        row = lines[place[-1] + 2]
        assert row.split()[:4] == ["100", "0-1", "20", "%"]
        assert all(words in row for words in ("70 %  slow.py", "waits for its data loader"))

    watched([FACTS], steps)


@pytest.mark.parametrize("width", [80, *(pytest.param(width, marks=pytest.mark.everything) for width in (120, 200))])
def test_keys(width: int) -> None:
    async def steps(pilot: Any, app: Any, feed: Feed) -> None:
        assert rows(app) == ["stuck.py", "slow.py", "good.py"]
        await pilot.press("s")
        assert rows(app) == ["good.py", "slow.py", "stuck.py"]  # by load
        await pilot.press("r")
        assert rows(app) == ["stuck.py", "slow.py", "good.py"]
        await pilot.press("slash", *"stall", "enter")
        assert rows(app) == ["stuck.py"]
        assert [option.id for option in app.query_one("#gpus").options] == ["GPU-2"]
        assert not any("slow.py" in line for line in screen(app)[2:])  # below the answer about the node
        await pilot.press("d")
        await pilot.pause()
        assert any("py-spy dump --pid 102" in line for line in screen(app))
        await pilot.press("escape", "question_mark")
        await pilot.pause()
        assert len(rows(app)) == 3
        assert not any("py-spy dump --pid 102" in line for line in screen(app))
        assert any("sort by the next of" in line for line in screen(app))
        await pilot.press("escape", "q")
        assert app.return_code == 0

    watched([FACTS], steps, (width, 24))


def test_details_of_a_gpu() -> None:
    async def steps(pilot: Any, app: Any, feed: Feed) -> None:
        await pilot.press("shift+tab", "down")
        await pilot.pause()
        assert any("GPU-1, PCI" in line for line in screen(app))

    watched([FACTS], steps)


def test_details_that_do_not_fit_are_turned_without_leaving_the_list() -> None:
    async def steps(pilot: Any, app: Any, feed: Feed) -> None:
        details, found = app.query_one("#details"), []
        for key in ("d", "pagedown", "pageup"):
            await pilot.press(key)
            await pilot.pause()
            found.append(details.scroll_target_y)
        assert found[1] > found[0] == found[2] == 0
        assert app.focused.id == "processes"

    watched([FACTS], steps, (70, 18))


def test_a_daemon_that_goes_away_and_returns() -> None:
    async def steps(pilot: Any, app: Any, feed: Feed) -> None:
        assert "node7 does not answer (trying again)" in screen(app)[0]
        for trouble in (False, True, False):
            feed.ask()
            await follow(pilot, app)
            assert ("does not answer" in screen(app)[0]) == trouble
            assert rows(app) == ["stuck.py", "slow.py", "good.py"]  # the last ones known

    away = AwayError("node7 does not answer")
    watched([away, FACTS, away, FACTS], steps)


def test_pause_keeps_the_screen_and_the_choice_survives_new_values() -> None:
    async def steps(pilot: Any, app: Any, feed: Feed) -> None:
        await pilot.press("down", "space")
        feed.ask()
        await follow(pilot, app)
        assert "node-7" in screen(app)[0]
        await pilot.press("space")
        await follow(pilot, app)
        assert "node-8" in screen(app)[0]
        assert app.query_one("#processes").highlighted == 1

    watched([FACTS, FACTS | {"host": "node-8"}], steps)


def test_hostile_names_do_not_control_the_terminal() -> None:
    facts = json.loads(json.dumps(FACTS))
    for gpu in facts["gpus"]:
        for process in gpu["processes"]:
            process |= {"command": "\x1b[2J[red]evil[/red]\n", "advice": "\x1b]0;title\x07"}

    async def steps(pilot: Any, app: Any, feed: Feed) -> None:
        assert all(line.isprintable() for line in screen(app))
        assert any("?[2J[red]evil[/red]?" in line for line in screen(app))

    watched([facts], steps)


def test_command_without_a_terminal_or_without_textual(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = CliRunner().invoke(command, [])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    missing = CliRunner().invoke(command, [])

    assert (piped.exit_code, missing.exit_code) == (2, 2)
    assert missing.stderr.startswith("gpugauge: gpugauge top needs the package textual>=")


def test_other_commands_do_not_load_textual() -> None:
    code = "import sys, gpugauge.cli.status, gpugauge.cli.top, gpugauge.daemon; print('textual' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_long_answer_and_a_long_advice_end_with_an_ellipsis() -> None:
    facts = json.loads(json.dumps(FACTS))
    facts["answer"] = " ".join(f"word{n}" for n in range(99))
    facts["problems"][0] |= {"advice": " ".join(f"step{n}" for n in range(200)), "advice_steps": []}

    async def steps(pilot: Any, app: Any, feed: Feed) -> None:
        lines = screen(app)
        ends = [max(i for i, line in enumerate(lines) if word in line) for word in ("word", "step")]
        assert [lines[end][-1] for end in ends] == ["…", "…"]
        assert ends[0] == 1
        assert any("PID  GPU" in line for line in lines)

    watched([facts], steps, (80, 24))


def test_what_loses_most_is_first_also_without_a_share() -> None:
    def one(name: str, level: str, **more: Any) -> ProcessStatus:
        return ProcessStatus(process=name, level=level, **more)

    waits = one("waits", "poor", state="training_on_cpu", data_wait_ratio=0.8)
    stuck = one("stuck", "bad", state="stalled")
    slow = one("slow", "poor", state="training", limited_by_words="waits for its data loader", lost_ratio=0.4)
    on_cpu = one("works", "good", state="training_on_cpu", data_wait_ratio=0.99)
    found = Status(answer="", timestamp=0.0, version=None, without_gpu=(on_cpu, slow, waits, stuck))

    assert [p.facts.process for p in chosen(found, "lost", False, "")] == ["stuck", "waits", "slow", "works"]
    assert [percent(loss(p)[0]) for p in (waits, stuck, slow, on_cpu)] == ["-", "-", "40 %", "-"]
    assert remark(waits) == loss(waits)[1] == "waits for data 80 % of its time"
    gpus = [GpuStatus(uuid=level, level=level, processes=(one(level, "none"),)) for level in ("good", "poor", "bad")]
    shown = chosen(replace(found, gpus=tuple(gpus), without_gpu=()), "lost", False, "")
    assert [process.facts.process for process in shown] == ["bad", "poor", "good"]


def test_the_widest_column_is_cut_and_the_temperature_stays() -> None:
    columns: list[Column[str]] = [Column(name, lambda text, _: text, least=4) for name in "AB"]
    assert Grid(columns, [["x" * 10, "y" * 20]], 22).line(["x" * 10, "y" * 20]) == f"{'x' * 10}  {'y' * 9}…"
    assert Grid(columns[:1], [["pretrain.py ×8"]], 12).line(["pretrain.py ×8"]) == "pretrain… ×8"
    hot = GpuStatus(uuid="GPU-a", index=3, state_words="NVLink errors", temperature_celsius=89)
    assert "89 °C" in gpu_lines(Status(answer="", timestamp=0.0, version=None, gpus=(hot,)), 60)[1][0][1]
