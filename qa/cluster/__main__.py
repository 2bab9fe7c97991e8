"""`make cluster-check`: runs the stages whose programs are there, in namespaces that end with it.

python -m qa.cluster [--cached] [ARGUMENT OF PYTEST]…
"""

from __future__ import annotations

import subprocess
import sys

from tests.needs import need

from qa.cluster import images, stages


def main(arguments: list[str]) -> int:
    """Run them, and return the exit code."""
    cached = "--cached" in arguments
    arguments = [each for each in arguments if each != "--cached"]
    runs, lacking = stages.split(cached)
    for stage, reason in lacking:
        print(f"NOT RUN: stage {stage.name} ({stage.shows}): {reason}", file=sys.stderr)
    if lacking and not cached:
        return 1
    if not runs:
        return 0
    if any(stage.nodes for stage in runs):
        images.images()  # before the network is gone
    enter = [need("unshare"), "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    pytest = [sys.executable, "-m", "pytest", "-q", "--capture=no", "--timeout=1800", "-m", "cluster", *arguments]
    command = [*enter, *pytest, *(f"qa/cluster/{stage.file}" for stage in runs)]
    return subprocess.call(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
