from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click import Context, Option
from click.testing import CliRunner, Result

from gpugauge.base import buildinfo
from gpugauge.cli import main as cli
from gpugauge.daemon import logs
from gpugauge.driver.client import Worker
from gpugauge.settings.model import Settings
from gpugauge.settings.options import walk
from gpugauge.web.listen import ListenError
from tests.drawn import cases


def invoke(*arguments: str, environ: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli.main, arguments, env=environ)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings with which the daemon was started; the daemon itself is a stand-in."""
    started: list[Settings] = []

    def run(settings: Settings, load: Callable[[], Settings], spawn: object) -> int:
        assert spawn is Worker
        assert load() == settings
        started.append(settings)
        return 0

    monkeypatch.setattr("gpugauge.daemon.app.run", run)
    monkeypatch.setattr(logs, "setup", lambda *_: None)
    return started


def test_version() -> None:
    assert invoke("--version").output == f"gpugauge {buildinfo.build()}\n"


def test_every_command_is_listed_and_has_help() -> None:
    listed = invoke("--help").output

    for name, command in ((name, cli.main.get_command(Context(cli.main), name)) for name in cli._COMMANDS):
        assert command is not None
        assert (command.name, f"  {name}  " in listed) == (name, True)
        assert command.get_short_help_str(200).endswith(".")
        missing = [p.name for p in command.params if isinstance(p, Option) and not (p.help or p.hidden)]
        assert missing == [], f"{name}: an option without a help text"


def test_every_setting_has_its_flag_in_the_help() -> None:
    output = invoke("serve", "--help").output

    missing = [setting.flag for setting in walk() if setting.flag not in output]
    assert missing == []


def test_flags_of_every_kind(served: list[Settings]) -> None:
    arguments = (
        "--web.listen-address=:1 --web.listen-address [::1]:2 --log.level debug --no-collector.process "
        "--driver.deadline-seconds 0.5 --simulate node"
    )

    result = invoke("serve", *arguments.split())

    (settings,) = served
    assert (result.exit_code, result.output) == (0, "")
    assert settings.web.listen_address == (("", 1), ("::1", 2))
    assert settings.log.level == "debug"
    assert settings.collectors() == Settings().collectors() - {"process"}
    assert settings.driver.deadline_seconds == 0.5
    assert settings.simulate == "node"


def test_file_and_environment(served: list[Settings], tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("log: {level: error}\nprocess: {max_per_device: 7}\n")

    invoke("serve", environ={"GPUGAUGE_CONFIG_FILE": str(file), "GPUGAUGE_LOG_LEVEL": "warning"})

    (settings,) = served
    assert (settings.log.level, settings.process.max_per_device) == ("warning", 7)


def test_bad_settings_exit_2_with_a_sentence_each(served: list[Settings], tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("web:\n  listen: ':1'\n  max_connection: 1\n")

    result = invoke("serve", "--config.file", str(file))

    wrong = ((2, "web.listen", "web.listen_address"), (3, "web.max_connection", "web.max_connections"))
    sentences = [f"gpugauge: {file}:{at}: {key}: unknown key; did you mean {near}?\n" for at, key, near in wrong]
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "".join(sentences))
    assert served == []


def test_an_unknown_flag_exits_2_and_names_the_nearest() -> None:
    result = invoke("serve", "--web.listen-adress=:1")

    assert result.exit_code == 2
    assert "--web.listen-address" in result.stderr


def test_an_address_that_is_taken_exits_1(served: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object) -> int:
        raise ListenError("cannot listen on :1: address already in use")

    monkeypatch.setattr("gpugauge.daemon.app.run", taken)

    result = invoke("serve")

    assert (result.exit_code, result.stderr) == (1, "gpugauge: cannot listen on :1: address already in use\n")


def test_exit_code_of_the_daemon(served: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpugauge.daemon.app.run", lambda *_: 3)

    assert invoke("serve").exit_code == 3


def test_scenarios_are_listed_one_per_line() -> None:
    result = invoke("scenarios")

    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert lines
    assert all(name and description.strip() for name, _, description in (line.partition("  ") for line in lines))


def test_run_executes_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpugauge.cli.main", "run", "--", sys.executable, "-c", "print('--help', 5)"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "--help 5\n"), done.stderr


def test_run_takes_the_commands_own_flags_without_a_separator(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[tuple[str, ...], bool]] = []
    monkeypatch.setattr("gpugauge.hook.launch.run", lambda words, recap: commands.append((words, recap)))

    invoke("run", "train.sh", "--lr", "1", "--help", "--quiet")
    invoke("run", "--quiet", "--", "train.sh")

    assert commands == [(("train.sh", "--lr", "1", "--help", "--quiet"), True), (("train.sh",), False)]


def test_run_names_a_command_that_does_not_exist() -> None:
    result = invoke("run", "--", "/nowhere/train")

    assert result.exit_code == 127
    assert result.stderr.endswith("\ngpugauge: /nowhere/train: no such command\n")


def test_run_states_whether_a_daemon_was_found(tmp_path: Path) -> None:
    def errors(*options: str, **environ: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "gpugauge.cli.main", "run", *options, "--", sys.executable, "-c", ""],
            env={**os.environ, "GPUGAUGE_HOOK_SOCKET": str(tmp_path / "hook.sock"), "GPUGAUGE_HOOK": "1", **environ},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == ""
        return done.stderr

    place = f"{tmp_path}/hook.sock"
    begin, end = f"gpugauge: no daemon listens on {place}: ", ". The hook tries again once a second\n"
    correct = f"correct GPUGAUGE_HOOK_SOCKET, or start a daemon there: gpugauge serve --hook.socket={place}"
    assert errors() == f"{begin}{correct}{end}"
    assert errors("--quiet") == ""
    assert errors(GPUGAUGE_HOOK="0") == "gpugauge: the hook is switched off by GPUGAUGE_HOOK\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.bind(place)
        daemon.listen()
        assert errors() == f"gpugauge: this process reports to the daemon at {place}\n"


def test_run_starts_without_the_daemons_libraries() -> None:
    program = (
        "import sys, gpugauge.cli.main, gpugauge.hook.launch; "
        "print([m for m in ('pydantic', 'tornado', 'yaml', 'pynvml', 'torch', 'asyncio') if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


@cases(
    ("words", "completed"),
    [("gpugauge stat", "plain,status"), ("gpugauge rules --thresh", "plain,--threshold"), ("gpugauge to", "plain,top")],
)
def test_shell_completion(words: str, completed: str) -> None:
    environ = {**os.environ, "_GPUGAUGE_COMPLETE": "bash_complete", "COMP_WORDS": words}
    environ["COMP_CWORD"] = str(words.count(" "))
    program = Path(sys.executable).with_name("gpugauge")

    done = subprocess.run([program], env=environ, capture_output=True, text=True, check=True)

    assert done.stdout == f"{completed}\n"
