"""Short name of a program, from its command line without arguments, which may contain secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_PYTHON = re.compile(rb"(?:python|pypy)[\d.]*[a-z]?")
# Options of the interpreter with a value that can be the next word: -W ignore, -X dev.
_WITH_VALUE = b"WX"


def command_name(argv: Sequence[bytes]) -> bytes:
    """Return the short name of a program: `train.py`, `pkg.train` for `python -m pkg.train`; empty without one."""
    words = [word for word in argv if word]
    if not words:
        return b""
    # A program that sets its own title has a single string, whose later words may be arguments.
    program = words[0] if len(words) > 1 else (words[0].split() or [b""])[0]
    name = _base(program).removeprefix(b"-")
    return _python(name, words[1:]) if _PYTHON.fullmatch(name) else name


def is_python(argv: Sequence[bytes]) -> bool:
    """Return whether the program is a Python interpreter."""
    return bool(argv) and bool(_PYTHON.fullmatch(_base(argv[0])))


def is_helper(argv: Sequence[bytes]) -> bool:
    """Return whether the process was started by Python's multiprocessing; it gets the name of its parent program."""
    return any(word.startswith(b"from multiprocessing.") for word in argv[1:8])


def _python(interpreter: bytes, words: list[bytes]) -> bytes:
    rest = iter(words)
    for word in rest:
        if word == b"-" or not word.startswith(b"-"):
            # `python some/project` and `python some/project/__main__.py` run the project.
            return interpreter if word == b"-" else _base(word.removesuffix(b"/__main__.py"))
        if word.startswith(b"--"):
            if word == b"--check-hash-based-pycs":
                next(rest, None)
            continue
        module = _short_options(word, rest)
        if module is not None:
            return module or interpreter
    return interpreter


def _short_options(word: bytes, rest: Iterator[bytes]) -> bytes | None:
    """Parse a word like `-uW ignore`. Return the module of -m, an empty name for -c, None for other options."""
    for i in range(1, len(word)):
        option = word[i : i + 1]
        if option == b"c":
            return b""
        if option == b"m":
            return word[i + 1 :] or next(rest, b"")
        if option in _WITH_VALUE:
            if i + 1 == len(word):
                next(rest, None)
            return None
    return None


def _base(path: bytes) -> bytes:
    return path.rstrip(b"/").rpartition(b"/")[2]
