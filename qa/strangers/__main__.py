"""Runs drawn training programs and prints every wrong statement: python -m qa.strangers --programs 1000 --seed 1."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

from qa.strangers.crowd import Finding, clear, run_all
from qa.strangers.draw import arguments, draw, seeds_of

# The largest share of statements that may be absent.
ABSENT = 0.05


def report(found: list[Finding], folder: Path) -> bool:
    """Print the statements by name, and each wrong one; return whether all is well."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for finding in found:
        counts[finding.statement.name][finding.statement.verdict] += 1
    print(f"{'statement':28} {'right':>7} {'absent':>7} {'wrong':>7}")
    total: Counter[str] = Counter()
    for name, of_name in sorted(counts.items()):
        print(f"{name:28} {of_name['right']:7} {of_name['absent']:7} {of_name['wrong']:7}")
        total.update(of_name)
    print(f"{'all':28} {total['right']:7} {total['absent']:7} {total['wrong']:7}")
    for finding in found:
        statement, program = finding.statement, finding.program
        if statement.verdict == "wrong":
            print(f"\nWRONG {statement.name}: expected {statement.expected}; reported {statement.reported}")
            print(f"  seed {program.seed} ({program.name}), {folder / str(program.seed)}")
    share = total["absent"] / max(1, total.total())
    if share > ABSENT:
        print(f"\n{share:.1%} of the statements are absent, more than {ABSENT:.0%}")
    return total["wrong"] == 0 and share <= ABSENT


def main() -> int:
    parser = arguments("qa.strangers", __doc__, at_once=12)
    parser.add_argument("--keep", action="store_true", help="keep the programs and what they measured")
    parser.add_argument("--names", action="store_true", help="print the drawn programs and run none")
    options = parser.parse_args()
    seeds = seeds_of(options)
    programs = [draw(seed) for seed in seeds]
    if options.names:
        for program in programs:
            print(program.seed, program.name)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="strangers-"))
    begin = time.monotonic()
    found = list(run_all(programs, folder, options.at_once))
    good = report(found, folder)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = f"{time.monotonic() - begin:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of CPU time"
    print(f"\n{len(programs)} programs in {seconds}, seeds {seeds[0]} to {seeds[-1]}")
    if good and not options.keep:
        clear(folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
