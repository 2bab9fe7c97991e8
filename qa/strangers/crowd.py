"""Runs drawn programs under the hook beside one real daemon, and compares all that it reports about them."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.programs import GPUGAUGE, daemon

from qa.strangers.compare import TICK, Statement, right, statements
from qa.strangers.draw import STALLED_SECONDS, Program
from qa.strangers.ends import Ended, ends
from qa.strangers.observe import Observer
from qa.strangers.timeline import Timeline, read

# Seconds after which a program is killed, to run once more when the others have ended. The longest drawn ones take a
# quarter of this on an idle machine.
LIMIT = 150.0
# After the end of a program, the time in which a child that it left can begin its log.
_LOG_SECONDS = 10.0
# Of so many programs, one runs again without the hook.
REPEATED = 10
# The ends that the processes of a killed program can have.
_ANY_END = ("killed", "other", "error", "finished", "interrupted")
CROWD = Program(0, "the crowd", {}, (), 0)


@dataclass
class Run:
    """A running program, `watched` by the hook or not."""

    program: Program
    watched: bool
    folder: Path
    process: subprocess.Popen[bytes]
    begin: float
    again: bool = False
    late: bool = False  # it took too long
    left: float = 0.0  # the time of its end, as far as its logs show
    gone: dict[int, float] = field(default_factory=dict)  # by pid, the time of its end

    @property
    def repeated(self) -> bool:
        """Whether it took too long, and runs once more."""
        return self.late and not self.again

    def has_ended(self, now: float) -> bool:
        """Record which of its processes have ended, kill all if they take too long; return whether all have ended."""
        for pid in self.log_pids():
            if pid not in self.gone and not _alive(pid):
                self.gone[pid] = now
        if now - self.begin > LIMIT:
            self.late = True
            _kill(self)
        if self.process.poll() is None or len(self.gone) != len(self.log_pids()):
            return False
        # A daemonised child may begin its log after its parent has ended.
        self.left = self.left or now
        return bool(self.gone) or now - self.left > _LOG_SECONDS

    def log_pids(self) -> list[int]:
        """Return the pids of its training processes so far."""
        return [int(path.stem) for path in sorted((self.folder / "truth").iterdir())]

    def names(self, observer: Observer, pid: int) -> list[str]:
        """Return the processes of the daemon that are its process with this pid."""
        return observer.of(pid, self.begin, self.gone.get(pid, self.begin))


@dataclass(frozen=True)
class Finding:
    """A statement about a program."""

    program: Program
    statement: Statement


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def start(program: Program, watched: bool, folder: Path, daemon_socket: Path, *, again: bool = False) -> Run:
    """Start a program in a folder of its own, under the hook if it is `watched`."""
    socket = daemon_socket if watched else None
    folder /= f"{program.seed}{'' if watched else '-plain'}{'-again' if again else ''}"
    (folder / "truth").mkdir(parents=True)
    for name, source in {**program.files, "truth.py": Path(__file__).with_name("truth.py").read_text()}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(source)
    variables = {**os.environ, **program.environment, "TRUTH": str(folder / "truth"), "OMP_NUM_THREADS": "1"}
    variables |= {"GPUGAUGE_HOOK_SOCKET": str(socket)} if socket else {"GPUGAUGE_HOOK": "0"}
    variables |= {"HF_HUB_OFFLINE": "1", "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    launcher = [GPUGAUGE, "run", "--"] if socket and program.launched else []
    command = [*launcher, sys.executable, *program.arguments]
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
    return Run(program, watched, folder, process, time.monotonic(), again)


def run_all(programs: Iterable[Program], folder: Path, at_once: int) -> Iterator[Finding]:
    """Run the programs, so many at once, and yield every statement about them."""
    # A job in the background ignores SIGINT, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    flags = ("--driver.mode=off", f"--verdict.stalled-seconds={STALLED_SECONDS:g}")
    with daemon(folder, *flags) as running_daemon:
        observer = Observer(running_daemon.url)
        done = _run(programs, folder, running_daemon.socket, observer, at_once)
    plain = {run.program.seed: run for run in done if not run.watched and not run.repeated}
    done = [run for run in done if run.watched]
    for run in done:
        if not run.repeated:
            yield from (Finding(run.program, statement) for statement in compared(run, observer))
            yield from _same(run, plain[run.program.seed]) if run.program.seed in plain else ()
    yield from (Finding(CROWD, s) for s in ends(_ended(done, observer), observer.ended))
    trained = {pid for run in done for pid in run.log_pids()}
    others = sorted({*observer.pids.values()} - trained)
    yield Finding(CROWD, right("processes that do not train", "none", others or "none", not others))
    errors = [line for line in running_daemon.log.read_text().splitlines() if "level=error" in line]
    yield Finding(CROWD, right("the daemon's log", "no errors", " ".join(errors[:1])[-500:] or "none", not errors))


def _run(programs: Iterable[Program], folder: Path, socket: Path, observer: Observer, at_once: int) -> list[Run]:
    """Run the programs, those that took too long once more and alone; return all runs."""
    done, running, late = list[Run](), list[Run](), list[Run]()
    waiting, next_poll, quiet_until = _twice(programs), 0.0, time.monotonic() + 1
    with contextlib.ExitStack() as stack:
        while running or time.monotonic() < quiet_until:
            now = time.monotonic()
            free = itertools.islice(waiting, at_once - len(running))
            begun = [start(program, watched, folder, socket) for program, watched in free]
            if late and not running and not begun:
                first = late.pop()
                begun = [start(first.program, first.watched, folder, socket, again=True)]
            for run in begun:
                stack.callback(_kill, run)
            running += begun
            ended = [run for run in running if run.has_ended(now)]
            running = [run for run in running if run not in ended]
            done += ended
            late += [run for run in ended if run.repeated]
            quiet_until = now + 2 * TICK if ended else quiet_until
            if now >= next_poll:
                observer.poll()
                next_poll = now + 1
            time.sleep(0.1)
    return done


def _twice(programs: Iterable[Program]) -> Iterator[tuple[Program, bool]]:
    """Yield the programs, and whether they run under the hook: all do, and one of so many also without."""
    for program in programs:
        yield program, True
        if program.seed % REPEATED == 0:
            yield program, False


def _ended(done: list[Run], observer: Observer) -> Iterator[Ended]:
    for run in done:
        for pid, truths in timelines(run):
            for number, truth in enumerate(truths):
                last = number == len(truths) - 1
                reasons = truth.ends[-1][1] if truth.ends else ("killed", "error")
                reasons = _ANY_END if run.late else reasons if last else ("other",)
                name = f"seed {run.program.seed} ({run.program.name})"
                yield Ended(name, truth.ended, reasons, certain=last and bool(run.names(observer, pid)))


def _kill(run: Run) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.process.pid, signal.SIGKILL)
    run.process.wait(60)


def timelines(run: Run) -> Iterator[tuple[int, list[Timeline]]]:
    """Yield the truth about each process: one for each program that it ran."""
    for path in sorted((run.folder / "truth").iterdir()):
        pid, parts = int(path.stem), read(path)
        ends = [float(events[0]["t"]) for events in parts[1:]] + [run.gone.get(pid, 0.0)]
        yield pid, [Timeline(pid, events, end) for events, end in zip(parts, ends, strict=True)]


def compared(run: Run, observer: Observer) -> Iterator[Statement]:
    """Yield all statements about a program."""
    code, expected = _code(run), run.program.code
    expected = expected if expected >= 0 else 128 - expected
    yield right("exit code", expected, code, code == expected)
    known = 0
    for pid, truths in timelines(run):
        known += len(truths)
        names = run.names(observer, pid)
        if len(names) == 1 and len(truths) > 1:  # exec continues the process
            count = observer.polls[names[0]][-1].value("torch_steps_total")
            # A program whose steps need not be seen adds all or none; of several threads, those of one or more.
            sums = {0}
            for truth in truths:
                few = truth.rounds if "threads" in truth.unknown else len(truth.steps)
                counts = [*range(few, len(truth.steps) + 1), *([0] if "steps" in truth.unknown else ())]
                sums = {total + count for total in sums for count in counts}
            yield right("steps of both programs", sorted(sums), count, count in sums)
            continue
        for number, truth in enumerate(truths):
            yield from statements(truth, observer.polls[names[number]] if number < len(names) else [])
        if len(names) > len(truths):
            yield right("processes", len(truths), len(names), holds=False)
    if not known:
        yield right("program", "measures itself", (run.folder / "stderr").read_text()[-300:], holds=False)


def _code(run: Run) -> int:
    """Return the exit code as a shell reports it."""
    code: int = run.process.returncode
    return code if code >= 0 else 128 - code


def _same(watched: Run, plain: Run) -> Iterator[Finding]:
    """Yield whether a program does the same with and without the hook."""
    # transformers prints its own run time.
    lines = [(run.folder / "stdout").read_bytes().splitlines() for run in (plain, watched)]
    outputs = [b"\n".join(line for line in found if b"'train_runtime'" not in line) for found in lines]
    codes = [_code(run) for run in (plain, watched)]
    yield Finding(watched.program, right("output", outputs[0][-200:], outputs[1][-200:], outputs[0] == outputs[1]))
    yield Finding(watched.program, right("exit code without", codes[0], codes[1], codes[0] == codes[1]))


def clear(folder: Path) -> None:
    """Remove what the programs left."""
    shutil.rmtree(folder, ignore_errors=True)
