"""The generator: a seed gives a program."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TypeVar

from qa.strangers.endings import ENDINGS, Ending
from qa.strangers.features import FEATURES, FRAMES, HEAD
from qa.strangers.loaders import LOADERS
from qa.strangers.optimizers import OPTIMIZERS
from qa.strangers.parallel import FRAMEWORKS, PARALLEL
from qa.strangers.phases import PHASES
from qa.strangers.text import fill, lines
from qa.strangers.wholes import WHOLES, Whole

# Seconds without a step after which the daemon of the tests reports a training as stalled.
STALLED_SECONDS = 10.0


class Weighted(Protocol):
    @property
    def weight(self) -> float: ...


Part = TypeVar("Part", bound=Weighted)

CODE = """
@setup@
n = 0
for epoch in range(@epochs@):
    @loop@
"""
BODY = """
@begin@
@pause@
@update@
n += 1
@after@
@extra@
"""
SECOND = """
import sys, time
import truth
import torch
torch.set_num_threads(1)
net = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for n in range(25):
    net(torch.ones(2, 8)).mean().backward()
    optimizer.step()
    truth.step()
    time.sleep(0.1)
truth.parameters(18)
truth.end("finished")
print("second", n)
"""
WATCH = "import gpugauge.hook\ngpugauge.hook.watch()\ntruth.watched()\n"
SITE = "import sys\nsys.stranger = 'own site'\n"
# How a program is started. The places are filled with the path of the script.
STARTS = (
    ("script", 6),
    ("-m", 1.5),
    ("-c", 1.0),
    ("-u", 1),
    ("-O", 0.5),
    ("-X dev", 0.5),
    ("sitecustomize", 1.0),
    ("watch", 1.0),
)


@dataclass(frozen=True)
class Program:
    """A drawn program: its files, the arguments of the interpreter, and the exit code it should have."""

    seed: int
    name: str
    files: dict[str, str]
    arguments: tuple[str, ...]
    code: int
    environment: dict[str, str] = field(default_factory=dict)
    launched: bool = True  # by `gpugauge run`; otherwise it calls watch()


def arguments(module: str, description: str | None, at_once: int) -> argparse.ArgumentParser:
    """Return the parser of a command that runs drawn programs, so many at once by default."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--programs", type=int, default=100, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=1, help="that of the first program")
    parser.add_argument("--only", type=int, nargs="*", help="run the programs of these seeds alone")
    parser.add_argument("--at-once", type=int, default=at_once, help="how many run beside each other")
    return parser


def seeds_of(options: argparse.Namespace) -> Sequence[int]:
    """Return the seeds that the command line names."""
    return options.only or range(options.seed, options.seed + options.programs)


def draw(seed: int) -> Program:
    """Return the program of the seed."""
    random = Random(seed)
    share = random.random()
    if share < 0.62:
        return _composed(seed, random)
    if share < 0.86:
        return _whole(seed, random, _pick(random, WHOLES))
    if share < 0.97:
        return _whole(seed, random, _pick(random, PARALLEL))
    return _whole(seed, random, _pick(random, FRAMEWORKS))


def _pick(random: Random, parts: Sequence[Part]) -> Part:
    return random.choices(parts, [part.weight for part in parts])[0]


def _composed(seed: int, random: Random) -> Program:
    optimizer, loader = _pick(random, OPTIMIZERS), _pick(random, LOADERS)
    phase, frame = _pick(random, PHASES), _pick(random, FRAMES)
    feature, ending = _pick(random, FEATURES), _pick(random, ENDINGS)
    start = random.choices([name for name, _ in STARTS], [weight for _, weight in STARTS])[0]
    if ending.name == "exec" and (feature.name in {"chdir", "closed stdin"} or start == "watch"):
        feature, start = FEATURES[0], "script"
    if feature.name == "warnings":  # torch itself warns
        optimizer = OPTIMIZERS[0] if optimizer.name.startswith(("scheduled", "averaged", "compiled")) else optimizer
    if phase.name == "evaluation by step":  # nothing else shows this evaluation (docs/hook.md)
        optimizer = OPTIMIZERS[0] if optimizer.name in {"by hand", "functional"} else optimizer
        loader = LOADERS[0] if "known=False" in loader.loop else loader
    if loader.name == "without gradients" and optimizer.name == "functional":
        optimizer = OPTIMIZERS[0]  # nothing shows this training (docs/hook.md)
    count, epochs = random.randint(4, 20), random.randint(1, 4)
    seconds = random.uniform(4.0, 9.0)
    share = random.choice((0.02, 0.2, 0.5, 0.8))
    item = seconds * share / (count * epochs * 2)
    compute = seconds * (1 - share) / (count * epochs)
    setup, update = optimizer.drawn(random)
    parts = [setup, phase.before, loader.setup]
    if random.random() < 0.5:
        parts = [loader.setup, setup, phase.before]
    if loader.unknown:
        parts.append(f"truth.unknown({', '.join(map(repr, loader.unknown.split()))})")
    body = fill(BODY, begin=phase.begin, pause=frame.pause, update=update, after=phase.after, extra=frame.extra)
    code = fill(CODE, setup=lines(*parts), loop=fill(loader.loop, body=body))
    source = fill(frame.text, early=feature.early, prelude=feature.prelude, code=code, ending=ending.source())
    long = random.choice((0.1, 0.6, 1.5))
    each = max(2, count * epochs // 3)
    values = {"count": count, "epochs": epochs, "item": f"{item:.4f}", "compute": f"{compute:.4f}", "seed": seed}
    values |= {"long": long, "each": each, "start": random.choice((2.0, 6.5)), "ahead": random.choice((2, 4, 8))}
    name = ", ".join((optimizer.name, loader.name, phase.name, frame.name, feature.name, ending.name, start))
    return _program(seed, name, fill(source, **values), ending, start)


def _whole(seed: int, random: Random, whole: Whole) -> Program:
    ending = _pick(random, ENDINGS) if whole.endings else ENDINGS[0]
    steps = random.randint(20, 90)
    values = {
        "seed": seed,
        "kind": random.choice(("SGD", "Adam", "AdamW", "RMSprop")),
        "steps": steps,
        "compute": f"{random.uniform(4, 8) / steps:.4f}",
        "item": f"{random.uniform(0.5, 3) / steps:.4f}",
        "folds": random.randint(3, 7),
        "few": random.choice((1, 1, 2, 5)),
        "slow": random.choice((0.2, 0.5)),
        "gap": random.choice((0, 2.5)),
        "inner": random.randint(2, 5),
        "accumulate": random.randint(1, 3),
        "stall": STALLED_SECONDS + 20,
        "turn": random.choice((2.0, 3.0, 4.0)),
    }
    tail = ending.source() if whole.endings else ""
    source = fill(HEAD + "@text@\n@ending@", early="", prelude="", text=whole.text, ending=tail)
    name = f"{whole.name}, {ending.name}" if whole.endings else whole.name
    return _program(seed, name, fill(source, **values), ending, "script", whole.arguments)


def _program(seed: int, name: str, source: str, ending: Ending, start: str, before: tuple[str, ...] = ()) -> Program:
    source = "\n".join(line for line in source.splitlines() if line.strip()) + "\n"
    compile(source, name, "exec")
    files = {"prog.py": source, "second.py": textwrap.dedent(SECOND).lstrip()}
    arguments: tuple[str, ...] = (*before, "prog.py")
    environment = {}
    if start == "-m":
        files |= {"job/__init__.py": "", "job/train.py": source}
        arguments = ("-m", "job.train")
    elif start == "-c":
        arguments = ("-c", source)
    elif start == "sitecustomize":
        files["site/sitecustomize.py"] = SITE
        files["prog.py"] = source.replace("import truth\n", "import truth\nprint(sys.stranger)\n", 1)
        environment["PYTHONPATH"] = "site"
    elif start == "watch":
        files["prog.py"] = source.replace("import gpugauge.hook\n", WATCH, 1)
    elif start.startswith("-"):
        arguments = (*start.split(), "prog.py")
    return Program(seed, name, files, arguments, ending.code, environment, start != "watch")
