"""Runs trainings that are healthy in unusual ways beside a daemon, which must advise nothing:
python -m qa.healthy --programs 30 --seed 1.

Advice is false if the program itself hardly waited. Where it did, as on a busy machine, advice on its loader is not
judged. The first program, with the seed 0, is not healthy, and must get advice.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.programs import GPUGAUGE, Daemon, daemon

from qa.healthy.draw import Program, control, draw

BESIDE = 4  # programs at a time
LEAST = 1.1  # smaller factors are no advice
WAITS = 0.04  # share of the time that a loader must not take


def start(program: Program, folder: Path, running: Daemon) -> subprocess.Popen[bytes]:
    """Start a program under the hook."""
    path = folder / f"healthy{program.seed}.py"
    path.write_text(program.source)
    environment = {**os.environ, "GPUGAUGE_HOOK_SOCKET": str(running.socket), "OMP_NUM_THREADS": "1"}
    python = [sys.executable]
    if program.ranks > 1:
        python += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={program.ranks}"]
    command = [GPUGAUGE, "run", "--", *python, str(path)]
    with (folder / f"{program.seed}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def advised(running: Daemon) -> Iterator[tuple[str, str, float]]:
    """Yield what the daemon advises at present: the file of the program, the advice, and its factor."""
    commands = {key[0]: key[1] for key in running.series("torch_process_info", "process", "command")}
    for (process, mistake), value in running.series("training_mistake", "process", "mistake").items():
        if value == 1.0:
            yield commands.get(process, process), f"mistake {mistake}", value
    for process, reason in running.series("training_loader_limited_by", "process", "reason"):
        yield commands.get(process, process), f"loader {reason}", 1.0
    for name in ("training_loader_expected_speedup_ratio", "training_expected_speedup_ratio"):
        for (process,), value in running.series(name, "process").items():
            if value > LEAST:
                yield commands.get(process, process), name.removeprefix("training_"), value


def judge(advice: dict[str, list[float]], log: str, healthy: bool = True) -> str:
    """Return the verdict on the advice that was given on a program: right, false, waits or failed."""
    waited = [float(share) for share in re.findall(r"waited ([0-9]+\.[0-9]{3})", log)]
    if not waited:
        return "failed"
    if not healthy:
        return "right" if "loader training_thread" in advice else "false"
    if not advice:
        return "right"
    mistaken = any(text.startswith("mistake") for text in advice)
    return "waits" if max(waited) >= WAITS and not mistaken else "false"


def line(program: Program, advice: dict[str, list[float]], log: str) -> str:
    """Return a result in one line, with the end of the log of a program that failed."""
    verdict = judge(advice, log, healthy=program.seed > 0)
    said = ", ".join(f"{text} up to {max(values):.2f} ({len(values)} s)" for text, values in advice.items())
    waits = " ".join(re.findall(r"waited ([0-9]+\.[0-9]{3})", log))
    text = f"{program.seed:4} {verdict:6} waited {waits}: {program.name}{': ' if said else ''}{said}"
    return f"{text}\n{log[-2000:]}" if verdict == "failed" else text


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m qa.healthy", description=__doc__)
    parser.add_argument("--programs", type=int, default=30, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=1, help="that of the first program")
    parser.add_argument("--only", type=int, nargs="*", help="run the programs of these seeds alone")
    options = parser.parse_args()
    waiting = [control()]
    waiting += [draw(seed) for seed in options.only or range(options.seed, options.seed + options.programs)]
    alive: list[tuple[Program, subprocess.Popen[bytes]]] = []
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    verdicts: list[str] = []
    with tempfile.TemporaryDirectory(prefix="healthy-") as name:
        folder = Path(name)
        with daemon(folder, "--driver.mode=off") as running:
            while waiting or alive:
                while waiting and len(alive) < BESIDE:
                    alive.append((program := waiting.pop(0), start(program, folder, running)))
                time.sleep(1.0)
                for command, text, value in advised(running):
                    found[command][text].append(value)
                for program, process in [each for each in alive if each[1].poll() is not None]:
                    alive.remove((program, process))
                    advice, log = found[f"healthy{program.seed}.py"], (folder / f"{program.seed}.log").read_text()
                    print(text := line(program, advice, log), flush=True)
                    verdicts.append(text.split()[1])
    print(", ".join(f"{verdicts.count(name)} {name}" for name in ("right", "waits", "false", "failed")))
    return 0 if not {"false", "failed"} & set(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
