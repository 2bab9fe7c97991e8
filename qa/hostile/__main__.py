"""Attacks one daemon by drawn messages, connections and requests, for a limited time: `make hostile`.

After each round of attacks, scrapes, an honest training and reloading must still work. A failure prints the seed, the
round, and the smallest part of it that fails on a daemon of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import time

from qa.hostile.attack import parse, text
from qa.hostile.client import KINDS
from qa.hostile.run import Found, attacked, drawn, has_users, shrunk

_LOG_LINES = 10


def summary(found: Found) -> str:
    """Return what was done, and the longest times."""
    acts = ", ".join(f"{kind} {number}" for kind, number in sorted(found.acts.items())) or "none"
    times = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in found.worst.items())
    memory = f"{found.most_bytes / 2**20:.0f} MiB"
    return f"{found.rounds} rounds; acts: {acts}; at most: {times}, memory {memory}"


def explain(found: Found, seed: int, seconds: float) -> None:
    """Print a failure, and how to repeat it."""
    print(f"FAILED, seed {seed}, round {found.rounds}: {found.problem}")
    print("\n".join(f"  log: {line}" for line in found.log.splitlines()[-_LOG_LINES:]))
    print(f"the round: {text(found.attacks)}")
    if not found.attacks:
        return
    part = shrunk(found.attacks, seconds, users=has_users(seed))
    if not part:
        print("A daemon of its own survives this round: what earlier rounds have opened is needed, too.")
        print(f'repeat: make hostile ARGS="--seed {seed}"')
        return
    print(f"this part of it fails on a daemon of its own: {text(part)}")
    print(f"repeat: make hostile ARGS=\"--seed {seed} --attack '{text(part)}'\"")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m qa.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long rounds are drawn")
    parser.add_argument(
        "--seed", type=int, help="of the rounds, and of whether the daemon has users; drawn if not given"
    )
    parser.add_argument("--attack", help="make this round once, in the form in which a failure prints it")
    parser.add_argument("--shrink-seconds", type=float, default=90, help="how long a round that fails is made smaller")
    options = parser.parse_args()
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    rounds = drawn(random.Random(seed))
    if options.attack is not None:
        try:
            rounds = iter([parse(options.attack, KINDS)])
        except ValueError as error:
            parser.error(f"--attack: {error}")
    users = has_users(seed)
    print(f"seed {seed}: a daemon {'with' if users else 'without'} users", flush=True)
    if os.geteuid() != 0:
        print("not root: no hostile users at the hook's socket, only clients of the port")
    began = time.monotonic()
    found = attacked(rounds, options.seconds, users=users)
    print(f"{summary(found)}; {time.monotonic() - began:.0f} s")
    if found.problem:
        explain(found, seed, options.shrink_seconds)
    return bool(found.problem)


if __name__ == "__main__":
    raise SystemExit(main())
