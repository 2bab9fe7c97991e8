"""What a person calls a program, from its command line: never an argument, which may hold a secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_PYTHON = re.compile(rb"(?:python|pypy)[\d.]*[a-z]?")
# Options of the interpreter whose value may follow as the next word: -W ignore, -X dev.
_WITH_VALUE = b"WX"


def command_name(argv: Sequence[bytes]) -> bytes:
    """Name a program: `train.py` for `python -u train.py --lr 1`, `pkg.train` for `python -m pkg.train`, else the
    last part of the program's path. Empty for an empty command line.
    """
    words = [word for word in argv if word]
    if not words:
        return b""
    # A program that sets its own title leaves one string; what follows the first word may be arguments again.
    program = words[0] if len(words) > 1 else (words[0].split() or [b""])[0]
    name = _base(program).removeprefix(b"-")
    return _python(name, words[1:]) if _PYTHON.fullmatch(name) else name


def is_python(argv: Sequence[bytes]) -> bool:
    """Tell whether the program is a Python interpreter."""
    return bool(argv) and bool(_PYTHON.fullmatch(_base(argv[0])))


def is_helper(argv: Sequence[bytes]) -> bool:
    """Tell whether it is a process of Python's multiprocessing, which is named after the program that started it."""
    return any(word.startswith(b"from multiprocessing.") for word in argv[1:8])


def _python(interpreter: bytes, words: list[bytes]) -> bytes:
    rest = iter(words)
    for word in rest:
        if word == b"-" or not word.startswith(b"-"):
            return interpreter if word == b"-" else _script(word)
        if word.startswith(b"--"):
            if word == b"--check-hash-based-pycs":
                next(rest, None)
            continue
        module = _short_options(word, rest)
        if module is not None:
            return module or interpreter
    return interpreter


def _short_options(word: bytes, rest: Iterator[bytes]) -> bytes | None:
    """Read a word like `-uW ignore`; return the module of -m, nothing for -c (code is no name), None for the others."""
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


def _script(path: bytes) -> bytes:
    """`python some/project` and `python some/project/__main__.py` run the project."""
    return _base(path.removesuffix(b"/__main__.py"))


def _base(path: bytes) -> bytes:
    return path.rstrip(b"/").rpartition(b"/")[2]
