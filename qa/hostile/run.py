"""A daemon under drawn attacks; after each round a witness examines it."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.website import USERS

from qa.hostile.attack import Attack, Round, draw, smaller
from qa.hostile.client import KINDS, Client, start
from qa.hostile.witness import SETTINGS, Witness, settings
from qa.torture.subject import Setting, Subject, subject

_START_SECONDS = 60.0
_ROUND_SECONDS = 12.0  # more than the longest act takes: a request whose connection the daemon should have closed
_STOP_SECONDS = 10.0  # TimeoutStopSec= of the unit
_HELD = 8  # attackers that keep what they have opened
_USER = 12340  # the first of the hostile users
_STEP_SECONDS = 0.2


@dataclass
class Found:
    """What a run has found: `problem` is empty if everything worked."""

    problem: str = ""
    attacks: Round = ()
    """The last round."""
    rounds: int = 0
    acts: Counter[str] = field(default_factory=Counter)
    worst: dict[str, float] = field(default_factory=dict)
    most_bytes: int = 0
    log: str = ""


def drawn(chance: Random) -> Iterator[Round]:
    """Yield rounds without end. Without root none is at the hook's socket: its user would be that of the training."""
    kinds = [kind for kind in KINDS if os.geteuid() == 0 or kind != "hook"]
    while True:
        kind = chance.choice(kinds)
        attacks = [draw(chance, kind, KINDS[kind])]
        # Replies are judged, therefore no other client takes connections from those of an http attack.
        beside = [other for other in kinds if "http" not in {kind, other}]
        attacks += [
            draw(chance, other, KINDS[other]) for other in chance.sample(beside, chance.randrange(len(beside) + 1))
        ]
        yield tuple(attacks)


def has_users(seed: int) -> bool:
    """Return whether the daemon of this seed has users, who have to log in."""
    return Random(seed).random() < 0.5


def attacked(rounds: Iterator[Round], seconds: float, *, users: bool) -> Found:
    """Run a daemon and attack it, until a round breaks something or the seconds have passed."""
    flags = ["--config.file={}/" + SETTINGS, "--web.enable-lifecycle"]
    files = {SETTINGS: settings(enabled=True)}
    if users:
        flags.append("--web.config.file={}/web.yml")
        files["web.yml"] = USERS
    found = Found()
    with subject(Setting(devices=2, flags=flags, files=files, real=True)) as run:
        run.folder.chmod(0o755)  # the hook's socket is in it
        witness, held = Witness(run, users), list[Client]()
        try:
            found.problem = _attack(run, witness, rounds, seconds, held, found)
            if not found.problem:
                found.problem = _stop(run)
        finally:
            witness.close()
            for client in held:
                client.kill()
        found.worst, found.most_bytes, found.log = witness.worst, witness.most_bytes, run.log()
    return found


def _attack(
    run: Subject, witness: Witness, rounds: Iterator[Round], seconds: float, held: list[Client], found: Found
) -> str:
    end = time.monotonic() + _START_SECONDS
    while not witness.ready():
        if time.monotonic() > end:
            raise SystemExit(f"the daemon does not serve: {run.log()}")
        time.sleep(0.1)
    if problem := witness.check():
        return f"before the first attack: {problem}"
    end = time.monotonic() + seconds
    for attacks in rounds:
        if time.monotonic() > end:
            break
        found.attacks = attacks
        found.rounds += 1
        if any(attack.kind == "http" for attack in attacks):
            _keep(held, [client for client in held if client.attack.kind != "port"])
        running = [_start(run, attack, found.rounds * 4 + place) for place, attack in enumerate(attacks)]
        held += running
        _wait(running, witness)
        for client in running:
            found.acts[client.attack.kind] += client.acts
        if faults := [fault for client in running for fault in client.faults]:
            return faults[0]
        if problem := witness.check():
            return problem
        _keep(held, [client for client in held if client.attack.holds][-_HELD:])
    return ""


def _start(run: Subject, attack: Attack, number: int) -> Client:
    return start(attack, Path(run.hook), ("127.0.0.1", run.port), _USER + number)


def _wait(running: list[Client], witness: Witness) -> None:
    """Let the training make steps until all acts have ended; an attacker that hangs in one is left alone."""
    end = time.monotonic() + _ROUND_SECONDS
    while not all(client.done(_STEP_SECONDS / len(running)) for client in running) and time.monotonic() < end:
        witness.honest.step()


def _keep(held: list[Client], wanted: list[Client]) -> None:
    for client in held:
        if client not in wanted:
            client.kill()
    held[:] = wanted


def _stop(run: Subject) -> str:
    """Stop the daemon while attackers hold what they have opened; return what is wrong."""
    began = time.monotonic()
    run.process.terminate()
    try:
        status = run.process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        return f"the daemon has not ended {_STOP_SECONDS:g} s after SIGTERM"
    return f"the daemon ended with {status} after {time.monotonic() - began:.1f} s" if status else ""


def shrunk(attacks: Round, seconds: float, *, users: bool) -> Round:
    """Return a part of a round that fails on a daemon of its own, as small as can be found in these seconds; empty if
    the whole round does not fail there.
    """
    end = time.monotonic() + seconds

    def fails(part: Round) -> bool | None:
        return bool(attacked(iter([part]), seconds, users=users).problem) if time.monotonic() < end else None

    return smaller(attacks, fails) if fails(attacks) else ()
