"""The state file: the GPUs that the daemon has read, for the next one, so that one lost meanwhile is still known."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpugauge.base import jsonfile
from gpugauge.base.logline import Condition, fields

log = logging.getLogger("gpugauge.driver")

_FORMAT = 1
_MAX_GPUS = 1024
_EXPECTED = "expected the JSON object that gpugauge writes; it is replaced"


@dataclass(frozen=True, slots=True)
class Remembered:
    """A GPU that was read; `seen` is the Unix time at which the driver enumerated it last."""

    uuid: str
    index: int = -1
    name: str | None = None
    pci_bus_id: str | None = None
    seen: float = 0.0


class StateFile:
    """The state file at `path`, if any; daemons may share it, each keeps what only others know. `machine` is its id."""

    def __init__(self, path: Path | None, machine: str = "") -> None:
        self._path = path
        self._machine = hashlib.sha256(f"gpugauge {machine}".encode()).hexdigest()[:16] if machine else ""
        self._failure = Condition(log)
        self._own: set[str] = set()  # GPUs that this daemon knows or has known

    def load(self) -> tuple[tuple[Remembered, ...], frozenset[str]]:
        """Return the GPUs, and the identities of those that were forgotten; nothing if the file cannot be used."""
        gpus, forgotten = self._read(report=True)
        self._own |= {gpu.uuid for gpu in gpus} | forgotten
        return tuple(gpus), frozenset(forgotten)

    def save(self, known: Iterable[Remembered], forgotten: Collection[str]) -> None:
        """Write these GPUs, and those of other daemons. A failure is logged once."""
        if self._path is None:
            return
        mine = {gpu.uuid: gpu for gpu in known}
        self._own |= mine.keys() | set(forgotten)
        try:
            with _locked(self._path):
                others, forgotten_by_others = self._read(report=False)
                kept = {gpu.uuid: gpu for gpu in others if gpu.uuid not in self._own} | mine
                gpus = {uuid: asdict(gpu) for uuid, gpu in sorted(kept.items())}
                for facts in gpus.values():
                    del facts["uuid"]
                names = sorted({*forgotten, *(forgotten_by_others - self._own)})[:_MAX_GPUS]
                head = {"gpugauge": _FORMAT, "machine": self._machine}
                jsonfile.replace(self._path, head | {"gpus": gpus, "forgotten": names})
        except OSError as error:
            sentence = "the state file cannot be written: a GPU that is lost while no daemon runs will not be known"
            self._failure.failing(sentence, path=str(self._path), error=error.strerror or str(error))
        else:
            self._failure.recovered("the state file was written again", path=str(self._path))

    def _read(self, *, report: bool) -> tuple[list[Remembered], set[str]]:
        if self._path is None:
            return [], set()
        try:
            machine, gpus, forgotten = _parsed(jsonfile.read(self._path))
        except FileNotFoundError:
            return [], set()
        except (OSError, ValueError) as error:
            if report:
                why = error.strerror if isinstance(error, OSError) else f"{_EXPECTED}: {error}"
                log.warning("the state file cannot be used", extra=fields(path=str(self._path), error=why))
            return [], set()
        if machine != self._machine:
            if report:
                log.warning("the state file is that of another machine; it is replaced", extra=fields(path=self._path))
            return [], set()
        return gpus, forgotten


def _parsed(content: Any) -> tuple[str, list[Remembered], set[str]]:
    match content:
        case {"gpugauge": 1, "machine": str(machine), "gpus": dict(gpus), "forgotten": list(forgotten)}:
            pass
        case _:
            raise ValueError("wrong keys, or a format that this version does not know")
    if len(gpus) > _MAX_GPUS or not all(isinstance(name, str) and name.isprintable() for name in forgotten):
        raise ValueError("too many GPUs, or a name that is no printable text")
    return machine, [_gpu(uuid, facts) for uuid, facts in gpus.items()], set(forgotten)


def _gpu(uuid: str, facts: Any) -> Remembered:
    match facts:
        case {"index": int(index), "name": str() | None as name, "pci_bus_id": str() | None as bus, "seen": seen} if (
            uuid
            and f"{uuid}{name}{bus}".isprintable()
            and isinstance(seen, (int, float))
            and not isinstance(index, bool)
        ):
            return Remembered(uuid, index, name, bus, float(seen))
    raise ValueError(f"wrong facts of the GPU {uuid[:60]!r}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, against other daemons. Raises OSError, BlockingIOError if another one has it."""
    # Not the folder or the file itself: every user who may read them could hold their locks.
    lock = path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def machine_id() -> str:
    """Return the id of the machine; empty if it has none."""
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def host_digest(procfs: Path) -> str:
    """Return a short digest of the id of this boot, which containers and host share; empty if it has none."""
    try:
        boot = (procfs / "sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(boot).hexdigest()[:8]


def default_path(environ: dict[str, str]) -> Path | None:
    """Return the path if none is set: in systemd's state directory, or in /var/lib/gpugauge if that can be written."""
    given = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    folder = Path(given or "/var/lib/gpugauge")
    return folder / "gpus.json" if given or os.access(folder, os.W_OK) else None
