from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpugauge.base import privileges
from gpugauge.driver import worker
from gpugauge.driver.nvidia import worker as nvidia_worker
from gpugauge.driver.nvidia.nvml import Nvml
from gpugauge.driver.nvidia.worker import WorkerNvml
from tests.drawn import cases
from tests.needs import require

# Gives itself one capability as a service manager does: root is no exception (SECBIT_NOROOT), and the ambient set has
# CAP_SYS_PTRACE. Then it runs the program in its arguments.
LIKE_A_SERVICE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
bit = 1 << 19
words = (ctypes.c_uint32 * 6)()
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
assert libc.prctl(28, 1, 0, 0, 0) == 0 and libc.capget(header, words) == 0
words[2] = bit
assert libc.capset(header, words) == 0 and libc.prctl(47, 2, 19, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""
BIT = 1 << 19
# Runs the daemon up to its first tick, and prints its own capabilities and those of a program that it starts.
UNTIL_THE_FIRST_TICK = """
import subprocess, sys
from gpugauge.__main__ import main
from gpugauge.daemon.sampler import Sampler
show = lambda *_: subprocess.run("grep Cap /proc/$PPID/status /proc/$$/status", shell=True)
Sampler.run = show
main()
"""


def has_setpcap() -> bool:
    text = Path("/proc/self/status").read_text().split("CapEff:\t")[1].split()[0]
    return bool(int(text, 16) >> 8 & 1)


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_no_program_inherits_the_capabilities_of_the_service(tmp_path: Path) -> None:
    require(has_setpcap(), "only root can give a process capabilities")
    flags = [f"--hook.socket={tmp_path}/hook.sock", "--web.listen-address=127.0.0.1:0", "--driver.mode=off"]
    command = [sys.executable, "-c", UNTIL_THE_FIRST_TICK, "serve", *flags]

    lines = run(sys.executable, "-c", LIKE_A_SERVICE, *command).splitlines()

    found = [tuple(line.split(":")[-2:]) for line in lines]
    assert [int(value, 16) for name, value in found if name == "CapEff"] == [BIT, 0]
    assert [int(value, 16) for name, value in found if name == "CapAmb"] == [0, 0]


GIVE_UP = "from gpugauge.base import privileges; privileges.give_up()\n"
STATUS = "import os; os.execv('/bin/grep', ['grep', '-E', '^(Cap|NoNewPrivs)', '/proc/self/status'])"


def test_what_was_given_up_does_not_come_back_with_another_program() -> None:
    status = dict(line.split(":\t") for line in run(sys.executable, "-c", GIVE_UP + STATUS).splitlines())

    assert status.pop("NoNewPrivs") == "1"
    bounding = int(status.pop("CapBnd"), 16)
    assert {name: int(value, 16) for name, value in status.items()} == dict.fromkeys(status, 0)
    assert bounding == 0 or not has_setpcap()


# Runs the program in its arguments without the system call capset, with every other one.
FORBIDDEN = """
import ctypes, os, platform, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 126, "aarch64": 91}[platform.machine()]
load, equal, forbid, allow = (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)
program = b"".join(struct.pack("HBBI", *each) for each in (load, equal, forbid, allow))
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_char_p)]
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Filter(4, program)), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""
# What the daemon does before it starts the worker in its arguments.
DAEMON = (
    "import os, sys; from gpugauge.base import privileges as p; p.clear_ambient(); os.execv(sys.argv[1], sys.argv[1:])"
)
WORKER = (
    "import os; from gpugauge.base import privileges; privileges.give_up(); print(privileges.permitted(os.getpid()))"
)


def test_what_a_filter_of_system_calls_lets_a_worker_keep_is_known() -> None:
    require(has_setpcap(), "only root has capabilities to give up")
    daemon, worker = [sys.executable, "-c", DAEMON], [sys.executable, "-c", WORKER]

    assert int(run(*daemon, *worker)) == 0
    assert int(run(sys.executable, "-c", FORBIDDEN, *daemon, *worker)) >> 8 & 1


def test_what_a_service_leaves_inheritable_is_not_kept() -> None:
    """The systemd unit forbids capset, too."""
    require(has_setpcap(), "only root can give a process capabilities")
    service = [part for program in (LIKE_A_SERVICE, FORBIDDEN, DAEMON) for part in (sys.executable, "-c", program)]
    inherited = "import sys; print(open('/proc/self/status').read().split('CapInh:')[1].split()[0])\n"
    inheritable, kept = run(*service, sys.executable, "-c", inherited + WORKER).split()

    assert (int(inheritable, 16), int(kept)) == (BIT, 0)


def test_capabilities_of_a_process_that_has_ended_are_none() -> None:
    assert privileges.permitted(2**22 + 1) == 0  # more than any process id


@cases(("exists", "order"), [(True, ["give up", "open", "give up"]), (False, ["open", "give up"])])
def test_privileges_last_until_the_device_files_exist(
    exists: bool, order: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    if exists:
        (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(nvidia_worker, "_CONTROL_DEVICE", tmp_path / "nvidiactl")
    monkeypatch.setattr(worker, "give_up_privileges", lambda: done.append("give up"))
    monkeypatch.setattr(Nvml, "open", lambda _: done.append("open"))
    WorkerNvml().open()
    assert done == order


def test_the_advice_names_the_capability_that_is_missing() -> None:
    require(has_setpcap(), "only root can give a process capabilities")
    advice = "from gpugauge.base import privileges; print(privileges.reading_others())"
    nothing = f"from gpugauge.base import privileges; privileges.give_up(); {advice}"

    assert run(sys.executable, "-c", LIKE_A_SERVICE, sys.executable, "-c", advice) == (
        "give the daemon CAP_DAC_READ_SEARCH\n"
    )
    assert run(sys.executable, "-c", nothing) == "give the daemon CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH\n"
