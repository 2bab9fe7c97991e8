"""The process of one attack, under a user of its own where that is possible."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from qa.hostile import hook, port
from qa.hostile.attack import Acts, Attack

KINDS: dict[str, Acts] = {"hook": hook.ACTS, "port": port.PORT_ACTS, "http": port.HTTP_ACTS}
_SECONDS = 2.0  # acts that have not begun by then are left out
_HELD_SECONDS = 600
_DONE = "done "


@dataclass
class Client:
    """A running attack. Killing it is the only way to end it."""

    attack: Attack
    pid: int
    output: int
    _said: str = ""

    def done(self, seconds: float) -> bool:
        """Wait for the end of its acts for at most `seconds`; return whether they have ended."""
        end = time.monotonic() + seconds
        while not self._ended:
            ready, _, _ = select.select([self.output], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self.output, 1 << 16) if ready else b""
            if not part:
                return bool(ready)
            self._said += part.decode(errors="replace")
        return True

    @property
    def _ended(self) -> bool:
        return any(line.startswith(_DONE) for line in self._said.splitlines())

    @property
    def acts(self) -> int:
        """The number of acts that it has made; 0 until they have ended."""
        return sum(int(line.removeprefix(_DONE)) for line in self._said.splitlines() if line.startswith(_DONE))

    @property
    def faults(self) -> list[str]:
        """What it saw that must not be."""
        return [line for line in self._said.splitlines() if not line.startswith(_DONE)]

    def kill(self) -> None:
        """End it, and the processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.output)


def start(attack: Attack, hook_socket: Path, address: port.Address, user: int) -> Client:
    """Start the attack. As root it runs as this user."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        with contextlib.suppress(OSError):  # the child has done so
            os.setpgid(child, child)
        return Client(attack, child, reading)
    try:
        os.setpgid(0, 0)
        os.close(reading)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        _run(attack, hook_socket, address, writing)
    except Exception as error:  # noqa: BLE001  (whatever it is, the run must report it)
        os.write(writing, f"the attack itself failed: {error!r}\n".encode())
    finally:
        os._exit(0)


def _run(attack: Attack, hook_socket: Path, address: port.Address, output: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    if attack.kind == "hook":
        actor: hook.Hook | port.Port | port.Http = hook.Hook(hook_socket)
    else:
        actor = port.Port(address) if attack.kind == "port" else port.Http(address)
    acts, made, end = KINDS[attack.kind], 0, time.monotonic() + _SECONDS
    for act in attack.acts:
        if time.monotonic() > end:
            break
        actor.draw.seed(act.seed)
        with contextlib.suppress(OSError, IndexError):
            acts[act.name](actor)
        made += 1
        if isinstance(actor, port.Http):
            while actor.faults:
                os.write(output, f"{act}: {actor.faults.pop()}\n".replace("\0", " ").encode())
    os.write(output, f"{_DONE}{made}\n".encode())
    if attack.holds:
        time.sleep(_HELD_SECONDS)
