"""The commands in an advice."""

from __future__ import annotations

import re
from collections.abc import Iterator

# A command ends where the sentence goes on.
_COMMAND = re.compile(
    r"\b(?:nvidia-smi|dmesg|modprobe|py-spy|kill(?= \d)|gpugauge (?:run|forget|doctor|release)) [^,;()…]*[^,;()…\s]"
)


def parts(advice: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of an advice in their order, and whether each is a command."""
    end = 0
    for found in _COMMAND.finditer(advice):
        if advice[found.end() :].lstrip().startswith("…"):  # a form, which has to be filled in
            continue
        yield advice[end : found.start()], False
        yield found[0], True
        end = found.end()
    yield advice[end:], False
