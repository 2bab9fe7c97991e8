from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.e2e
PROGRAM = [sys.executable, "-m", "gpugauge"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=60)


def test_help_and_mistakes_of_serve() -> None:
    helped, mistaken, refused = run("serve", "--help"), run("serve", "--log.lvl=x"), run("serve", "--log.level=x")

    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith("Usage: gpugauge serve [OPTIONS]\n")
    assert (mistaken.returncode, mistaken.stdout) == (2, "")
    assert "--log.level" in mistaken.stderr
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("gpugauge: --log.level: must be 'debug', 'info', ")


def test_other_commands() -> None:
    assert run("--version").stdout.startswith("gpugauge ")
    assert run("srv").returncode == 2


class Starting(NamedTuple):
    """A daemon that still reads its settings, and the process that does."""

    process: subprocess.Popen[str]
    child: int


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Starting]:
    file = tmp_path / "settings"
    file.write_text("log: {level: loud}\nmetrics:\n  include: [" + "a, " * 60_000 + "a]\n")  # takes seconds
    command = [*PROGRAM, "serve", f"--config.file={file}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not (child := children.read_text()):
            time.sleep(0.005)
        while "settings_child" not in Path(f"/proc/{child.strip()}/cmdline").read_text():
            time.sleep(0.005)
        yield Starting(process, int(child))
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signal_ends_both_while_the_settings_are_read(starting: Starting, number: signal.Signals) -> None:
    child = os.pidfd_open(starting.child)

    starting.process.send_signal(number)

    assert starting.process.wait(10) == (-number if number is signal.SIGKILL else 0)
    ended, _, _ = select.select([child], [], [], 10)  # no matter which process reaps it
    os.close(child)
    assert ended


def test_hangup_while_the_settings_are_read(starting: Starting) -> None:
    starting.process.send_signal(signal.SIGHUP)
    os.kill(starting.child, signal.SIGHUP)

    _, errors = starting.process.communicate(timeout=60)
    assert starting.process.returncode == 2
    assert "log.level: must be" in errors


# Runs the daemon up to its first tick, and prints what it has loaded.
UNTIL_THE_FIRST_TICK = """
import sys
from gpugauge.__main__ import main
from gpugauge.daemon.sampler import Sampler
Sampler.run = lambda *_: print(*sys.modules)
main()
"""


def test_daemon_on_a_real_node_never_loads_the_libraries_that_read_settings(tmp_path: Path) -> None:
    flags = [f"--hook.socket={tmp_path}/hook.sock", "--web.listen-address=127.0.0.1:0", "--driver.mode=off"]
    command = [sys.executable, "-c", UNTIL_THE_FIRST_TICK, "serve", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    loaded = done.stdout.split()
    packages = {name.split(".")[0] for name in loaded}
    assert {"gpugauge", "tornado"} <= packages
    assert not packages & {
        "pydantic",
        "pydantic_core",
        "annotated_types",
        "click",
        "yaml",
        "prometheus_client",
        "torch",
    }
    assert not {"difflib", "importlib.resources", "zipfile"} & set(loaded)  # what our own code need not load


# Prints each child process up to the first tick, and what was imported before it.
CHILDREN = """
import re, subprocess, sys
from gpugauge.__main__ import main
begin = subprocess.Popen.__init__
def noted(self, command, *rest, **more):
    (module,) = re.findall("from ([a-z._]+) import main", " ".join(command))
    print(module.split(".")[1], "after" if "gpugauge.daemon.app" in sys.modules else "before", flush=True)
    begin(self, command, *rest, **more)
subprocess.Popen.__init__ = noted
main()
"""


def children(*flags: str) -> set[str]:
    """Return the first child process of each kind of a daemon; `before` are those that start before its imports."""
    command = [sys.executable, "-c", CHILDREN, "serve", "--web.listen-address=127.0.0.1:0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            if "msg=serving" in line:
                break
        process.terminate()
        started = process.communicate(timeout=30)[0].splitlines()
    # A worker that finds no driver is replaced.
    return set({line.split()[0]: line for line in reversed(started)}.values())


def test_plain_settings_need_no_process_and_the_worker_starts_at_once(tmp_path: Path) -> None:
    (tmp_path / "settings").touch()
    hook, file = f"--hook.socket={tmp_path}/hook.sock", f"--config.file={tmp_path}/settings"

    assert children(hook) == {"driver before", "sessions after"}
    assert children(hook, "--driver.mode=off") == {"sessions after"}
    assert children(hook, file) == {"cli before", "driver after", "sessions after"}
    assert children(hook, "--simulate=idle") == {"simulator after", "sessions after"}


@pytest.mark.parametrize("redirections", ["2>&-", "0<&- 1>&- 2>&-", "2>/dev/full", "2> >(exec head -c 1 >/dev/null)"])
def test_the_daemon_serves_without_usable_standard_streams(tmp_path: Path, redirections: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = [f"--hook.socket={tmp_path}/hook.sock", f"--web.listen-address=127.0.0.1:{port}", "--driver.mode=off"]
    shell = ["bash", "-c", f'exec "$@" {redirections}', "bash", *PROGRAM, "serve", *flags, "--web.enable-lifecycle"]
    with subprocess.Popen(shell, stderr=subprocess.DEVNULL) as process:
        try:
            reload = urllib.request.Request(f"http://127.0.0.1:{port}/-/reload", method="POST")
            end = time.monotonic() + 30
            while True:
                assert process.poll() is None
                assert time.monotonic() < end
                with contextlib.suppress(urllib.error.URLError):
                    urllib.request.urlopen(reload, timeout=15).close()
                    break
                time.sleep(0.05)
            names = {number: str(Path(f"/proc/{process.pid}/fd/{number}").readlink()) for number in range(3)}
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()

    assert not [name for name in names.values() if name.startswith(("socket:", "anon_inode:"))]
