"""Runs the probe in the examined Python, as its own process: it may lack torch, crash or hang."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from gpugauge.base import isolated
from gpugauge.doctor import probe

_POLL_SECONDS = 0.02
_REAP_SECONDS = 2.0
_MAX_OUTPUT_BYTES = 4 << 20


class PythonError(Exception):
    """The Python is missing or cannot be started. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """All parts that the probe reported. `ending` describes an early end, else it is ""."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    ending: str = ""


def find_python(given: str | None, environ: Mapping[str, str]) -> str:
    """Return the interpreter: the given one, that of the virtual environment, or on the PATH. Raises PythonError."""
    # Without the current folder and those relative to it: a python3 there is of the folder's owner.
    path = os.pathsep.join(filter(os.path.isabs, environ.get("PATH", os.defpath).split(os.pathsep)))
    if given:
        inside = Path(given, "bin", "python").absolute()
        found = str(inside) if inside.exists() else shutil.which(given, path=path)
        if found is None:
            raise PythonError(f"{given} is not an executable program")
        return str(Path(found).absolute())
    environment = environ.get("VIRTUAL_ENV")
    if environment and Path(environment, "bin", "python").exists():
        return str(Path(environment, "bin", "python").absolute())
    found = shutil.which("python3", path=path) or shutil.which("python", path=path)
    if found is None:
        raise PythonError("there is no python3 on the PATH")
    return found


def ask(python: str, part: Literal["facts", "timings"], seconds: float, environ: Mapping[str, str]) -> ProbeResult:
    """Run the probe in `python` for at most `seconds`. Raises PythonError if it cannot be started."""
    source = Path(probe.__file__).read_text(encoding="utf-8")
    with contextlib.ExitStack() as stack:
        try:
            out, errors = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        except OSError as error:
            message = f"the examined Python needs a folder for temporary files (TMPDIR): {error.strerror}"
            raise PythonError(message) from error
        try:
            process = subprocess.Popen(
                [python, "-c", source, part],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd=isolated.FOLDER,
                env=_environment(environ),
                start_new_session=True,
            )
        except OSError as error:
            raise PythonError(f"{python} cannot be started: {error.strerror}") from error
        in_time = _wait(process, seconds)
        facts = _facts(_content(out))
        return ProbeResult(facts, _ending(process, in_time, seconds, facts, _content(errors)))


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the probe. It finds the modules that a script of the caller finds, except for the
    current folder's and, in a home folder of another user, those of that user.
    """
    # The probe is not a training: it runs without the hook.
    result = isolated.environment(dict(environ)) | {"GPUGAUGE_HOOK": "0", "PYTHONIOENCODING": "utf-8"}
    entries = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    result["PYTHONPATH"] = os.pathsep.join(
        str(Path(entry).absolute()) for entry in entries if not isolated.is_current(entry)
    )
    if "PYTHONUSERBASE" in environ:
        result["PYTHONUSERBASE"] = environ["PYTHONUSERBASE"]
    if environ.get("PYTHONNOUSERSITE") or not _is_own(environ.get("HOME", "")):
        result["PYTHONNOUSERSITE"] = "1"
    return result


def _is_own(folder: str) -> bool:
    try:
        return Path(folder).stat().st_uid == os.geteuid()
    except OSError:
        return False


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the process and kill it after `seconds`; return whether it ended in time."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        _kill(process)
        return False
    except BaseException:  # Control-C: the process has its own session and does not receive it
        _kill(process)
        raise
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    until = time.monotonic() + _REAP_SECONDS
    while process.poll() is None and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_MAX_OUTPUT_BYTES).decode(errors="replace")


def _facts(text: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith(probe.MARK):
            with contextlib.suppress(ValueError):  # an incomplete line
                facts |= json.loads(line.removeprefix(probe.MARK))
    return facts


def _ending(
    process: subprocess.Popen[bytes], in_time: bool, seconds: float, facts: Mapping[str, Any], errors: str
) -> str:
    stage = facts.get("stage")
    during = f" while {stage}" if stage and stage != "done" else ""
    if not in_time:
        return f"did not answer within {seconds:g} s{during}"
    code = process.returncode
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}{during}"
        return f"was ended by signal {-code}{during}"
    if code or stage != "done":
        last = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
        return f"exited with status {code}{during}" + (f": {last}" if last else "")
    return ""
