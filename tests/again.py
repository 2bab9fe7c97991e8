"""`python -m tests.again ARGUMENTS`: pytest, whose few failed tests are run once more, one after the other.

Hundreds of tests start programs and wait for them, and a machine that others share can stop for seconds at any time. A
test that fails twice, the second time with nothing beside it, fails the run. Those that passed at the second time are
named at the end, so that a test that often needs it is seen.
"""

import subprocess
import sys

import pytest

# More failures than this do not come from a machine that was busy for a moment.
MOST = 8


class Failures:
    """The node ids of failed tests, in the order in which they failed; set-up and tear-down count as the test."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.ids:
            self.ids.append(report.nodeid)


def main(arguments: list[str]) -> int:
    """The exit code of pytest; 0 also if at most MOST tests failed and all of them pass the second time."""
    failures = Failures()
    code = pytest.main(arguments, plugins=[failures])
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failures.ids) <= MOST:
        return int(code)
    print(f"\nonce more, one after the other: {len(failures.ids)} that failed", flush=True)
    kept = [argument for argument in arguments if argument == "-q" or argument.startswith("--timeout")]
    second = subprocess.run([sys.executable, "-m", "pytest", *kept, *failures.ids], check=False).returncode
    result = "passed the second time" if second == 0 else "failed, and not all passed the second time"
    print("".join(f"{result}: {test}\n" for test in failures.ids), end="", flush=True)
    return second


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
