"""`gpugauge run -- COMMAND`: the environment that loads the hook, and the command in place of this process."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from gpugauge.wire import messages as wire

T = TypeVar("T")

BOOTSTRAP = str(Path(__file__).resolve().parent / "bootstrap")

# Options of the interpreter by which it ignores PYTHONPATH or runs no sitecustomize.
_OPTIONS_WITHOUT_HOOK = {"I": "ignores PYTHONPATH", "E": "ignores PYTHONPATH", "S": "runs no sitecustomize"}

# The files that a training process loads; they find each other by their relative places.
_EXPORTED = ("__init__.py", "base/text.py", "wire", "hook")


class LaunchError(Exception):
    """The command cannot be started. `exit_code` is the one a shell returns for the error."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def environment(environ: Mapping[str, str], socket: str | None = None, recap: bool = False) -> dict[str, str]:
    """Return a copy of `environ` that loads the hook into every Python; with `recap` it prints a line at the end."""
    # An empty entry is the current folder, but an empty variable is none.
    before = environ.get("PYTHONPATH")
    kept = [entry for entry in before.split(os.pathsep) if entry != BOOTSTRAP] if before else []
    result = {**environ, "PYTHONPATH": os.pathsep.join((BOOTSTRAP, *kept))}
    if socket is not None:
        result[wire.SOCKET_VARIABLE] = socket
    if recap:
        with contextlib.suppress(OSError):  # stderr is closed
            result[wire.RECAP_VARIABLE] = wire.recap_on(os.fstat(2))
    return result


def export(folder: Path) -> str:
    """Copy the hook into `folder`, in place of an earlier version. Return the entry for PYTHONPATH. Raises OSError."""
    source, target = Path(__file__).resolve().parent.parent, folder / "gpugauge"
    made = [path for path in target.parents if not path.exists()]
    target.mkdir(parents=True, exist_ok=True)
    for part in _EXPORTED:
        if (source / part).is_dir():
            shutil.rmtree(target / part, ignore_errors=True)
            shutil.copytree(source / part, target / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (target / part).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / part, target / part)
    for path in (*made, target, *target.rglob("*")):  # every user of the container reads them, whatever the umask is
        path.chmod(0o755 if path.is_dir() else 0o644)
    return str(target / "hook" / "bootstrap")


def obstacle(command: Sequence[str]) -> str | None:
    """Return the reason for which the interpreter in the command would not load the hook, by its options; else None."""
    if not Path(command[0]).name.startswith("python"):
        return None
    for argument in command[1:]:
        if not argument.startswith("-") or argument.startswith("--") or argument == "-":
            return None
        for letter in argument[1:]:
            if letter in _OPTIONS_WITHOUT_HOOK:
                effect = _OPTIONS_WITHOUT_HOOK[letter]
                return f"python -{letter} {effect}, so no hook is loaded: call gpugauge.hook.watch() instead"
            if letter in "cmWX":  # the rest of the argument, or the next one, belongs to this option
                break
        if argument[-1] in "cm":
            return None
    return None


def _replace(command: list[str], environ: dict[str, str]) -> NoReturn:
    os.execvpe(command[0], command, environ)  # noqa: S606 - the user's own command


def run(command: Sequence[str], recap: bool = False, start: Callable[[list[str], dict[str, str]], T] = _replace) -> T:
    """Replace this process by the command, or `start` it, with the hook in its environment. Raises LaunchError."""
    if not command:
        raise LaunchError("no command: gpugauge run -- python train.py", 2)
    try:
        return start(list(command), environment(os.environ, recap=recap))
    except FileNotFoundError:
        raise LaunchError(f"{command[0]}: no such command", 127) from None
    except OSError as error:
        raise LaunchError(f"{command[0]}: {error.strerror}", 126) from None
