"""The answer about a process: of drawn nodes behind a server as the daemon, and what is missing without one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from qa.worlds.nodes import Node, Program, draw

from gpugauge.base.text import printable
from gpugauge.cli.main import main
from gpugauge.doctor.answer import StatusReply, answer, lines
from gpugauge.doctor.finding import failure, ok, warning
from gpugauge.doctor.report import below
from gpugauge.doctor.table import Entry
from gpugauge.terminal.columns import cells
from gpugauge.verdict.causes import CAUSES
from tests.doctor.cases import case
from tests.doctor.daemons import Answers, answers_of, serving
from tests.doctor.test_process import proc


def said(root: Path, answers: Answers, pid: int) -> StatusReply:
    with serving(answers) as url:
        return answer(case(root, pid=pid, url=url))


def shown(root: Path, of: StatusReply, width: int, pid: int = 1) -> list[str]:
    return list(lines(case(root, pid=pid), of, width, colour=False))


def without_blanks(text: str) -> str:
    return re.sub(r"\s+", "", text)


def some(condition: str) -> tuple[Node, Program]:
    nodes = map(draw, range(1000))
    return next((node, p) for node in nodes for p in node.programs if p.condition == condition)


def test_the_daemon_does_not_answer(tmp_path: Path) -> None:
    proc(tmp_path)
    found = answer(case(tmp_path, pid=4194305, url="http://127.0.0.1:1/metrics"))

    assert found.process is None
    text = " ".join(" ".join(shown(tmp_path, found, 80, 4194305)).split())
    assert text.startswith(
        "Process 4194305 What it does, where its steps go and what limits it is not known: http://127"
    )
    assert "does not answer (Connection refused); for the state inside the process start gpugauge serve" in text
    assert found.plain() == {"process": None, "missing": found.missing, "advice": None}


def test_the_daemon_does_not_report_the_process(tmp_path: Path) -> None:
    node, _ = some("well")
    proc(tmp_path)
    found = said(tmp_path, answers_of(node), 4194305)

    assert found.missing.startswith("it does not report this process.")
    assert "start it with the hook" in " ".join(shown(tmp_path, found, 80))


def test_a_process_that_nobody_knows_is_not_to_be_started(tmp_path: Path) -> None:
    node, _ = some("well")
    silent = answer(case(tmp_path, pid=4_194_305, url="http://127.0.0.1:1/metrics"))
    found = said(tmp_path, answers_of(node), 4_194_305)

    assert silent.missing.startswith("there is no such process here, and http://127.0.0.1:1/api/v1/status does not")
    assert found.missing == "there is no such process here, and the daemon knows of none"
    assert (silent.advice, found.advice, silent.nowhere, found.nowhere) == ("", "", False, True)
    assert "the programs that it knows: gpugauge status" in " ".join(shown(tmp_path, found, 80, 4_194_305))


def test_a_hook_from_which_nothing_came(tmp_path: Path) -> None:
    node, _ = some("well")
    environ = "A=1\0PYTHONPATH=/venv/lib/gpugauge/hook/bootstrap:/x\0"
    proc(tmp_path, "libtorch_cpu.so", environ=environ)
    found = said(tmp_path, answers_of(node), 4194305)

    assert "the daemon has received no step or batch" in found.missing
    assert "gpugauge.hook.step()" in found.advice


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ((403, "status is for admins"), "answers 403: status is for admins"),
        ((200, "[]"), "does not answer as gpugauge does"),
        (
            (200, '{"gpus": [], "timestamp": 1, "problems": [], "answer": "-", "version": "", "driver": {}}'),
            "the daemon knows of none",
        ),
    ],
)
def test_metrics_without_a_status(tmp_path: Path, status: tuple[int, str], problem: str) -> None:
    node, program = some("well")
    found = said(tmp_path, {**answers_of(node), "/api/v1/status": status}, program.pid)

    assert found.process is None
    assert problem in found.missing


def test_a_simulated_daemon_is_announced(tmp_path: Path) -> None:
    node, program = some("well")
    answers = answers_of(node)
    facts = {**json.loads(answers["/api/v1/status"][1]), "simulated": True}
    found = said(tmp_path, {**answers, "/api/v1/status": (200, json.dumps(facts))}, program.pid)

    assert shown(tmp_path, found, 80)[0] == "SIMULATED: these GPUs do not exist."


def test_below_the_answer_stands_what_it_does_not_say(tmp_path: Path) -> None:
    node, program = some("limited")
    found = said(tmp_path, answers_of(node), program.pid)
    other = next(cause for cause in CAUSES if cause != program.cause)
    entries = [
        Entry("Condition", "clocks", warning("Clocks", "named by the answer", cause=program.cause)),
        Entry("Condition", "pcie", warning("PCIe link", "another cause", cause=other)),
        Entry("Condition", "modes", ok("Modes", "every GPU allows computation")),
        *(Entry("Process", check, failure("Verdict", "limited")) for check in ("daemon", "state")),
        Entry("Process", "allocator", failure("Memory", "3 out-of-memory errors", "less")),
    ]

    text = "\n".join(below(case(tmp_path, pid=7), found, entries, colour=False))
    assert re.findall(r"(?:WARN|FAIL)  (\w+)", text) == ["PCIe", "Memory"]
    assert text.endswith("All checks: gpugauge doctor 7 --url http://127.0.0.1:1 --checks")
    none = " ".join(below(case(tmp_path, pid=7), found, entries[:1], colour=False))
    assert none.startswith(" Its checks found no other problem. All checks: gpugauge doctor 7 ")


@pytest.mark.parametrize(
    "form", ["{host}:{port}", "http://{host}:{port}", "http://{host}:{port}/", "{host}:{port}/metrics"]
)
def test_the_address_is_written_as_for_status(form: str) -> None:
    node, program = some("limited")
    with serving(answers_of(node)) as url:
        parts = urlsplit(url)
        address = form.format(host=parts.hostname, port=parts.port)
        shown = CliRunner().invoke(main, ["doctor", str(program.pid), "--url", address, "--simulate", "node"])

    assert f"[{program.cause}]" in shown.output


def test_a_daemon_that_cannot_be_asked_leaves_the_question_open(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [Entry("Condition", "modes", ok("Modes", "every GPU allows computation"))]
    monkeypatch.setattr("gpugauge.cli.doctor.examine", lambda _: entries)
    shown = CliRunner().invoke(main, ["doctor", "4194305", "--url", "127.0.0.1:1"])

    words = " ".join(shown.output.split())
    assert shown.exit_code == 2
    assert "http://127.0.0.1:1/api/v1/status does not answer (Connection refused)" in words
    assert words.endswith(
        "The checks from outside found no problem. What limits it is not known: the daemon did not answer."
    )


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_command(width: int) -> None:
    node, program = some("limited")
    with serving(answers_of(node)) as url:
        command = ["doctor", str(program.pid), "--url", url, "--simulate", "node"]
        environ = {"COLUMNS": str(width)}
        brief, whole, data = (
            CliRunner().invoke(main, [*command, *more], env=environ) for more in ([], ["--checks"], ["--json"])
        )

    head = brief.output.splitlines()
    assert without_blanks(f"{printable(program.name)}, pid {program.pid}") in without_blanks("".join(head))
    assert max(map(cells, head)) <= width
    assert "Where a step goes" in head
    assert "NVIDIA driver" not in brief.output
    assert "  pass  NVIDIA driver" in whole.output
    assert whole.output.index("What limits it") < whole.output.index("Machine")
    assert [type(result.exception) for result in (brief, whole, data)] == [SystemExit] * 3
    document = json.loads(data.output)
    assert document["answer"]["process"]["process"] == program.process
    assert document["exit_code"] == data.exit_code == brief.exit_code == whole.exit_code
    assert {"driver", "state"} <= {finding["check"] for finding in document["findings"]}


def test_a_terminal_without_block_characters() -> None:
    node, program = some("limited")
    with serving(answers_of(node)) as url:
        command = ["doctor", str(program.pid), "--url", url, "--simulate", "node"]
        shown = CliRunner(charset="ascii").invoke(main, command).output

    assert "Where a step goes" in shown
    assert shown.isascii()
