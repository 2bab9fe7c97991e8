"""Python processes that run no file of the current folder, and no file that the environment names. This module imports
only what each interpreter has loaded before, not even `__future__`: a file of the current folder could be in its place.
"""

import os
import sys

FOLDER = "/"
"""The current folder of an isolated process: only root can write to it."""

# The folder in which gpugauge is installed. pathlib would load much here.
_PACKAGE_FOLDER = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))  # noqa: PTH100, PTH118, PTH120


def forget_current_folder() -> None:
    """Remove the current folder, which `python -m` and `-c` insert, from the module path, unless gpugauge is in it."""
    # The folders of the interpreter come last, and stay also where they are the current one.
    library = os.path.dirname(os.__file__)  # noqa: PTH120  (the same)
    own = sys.path.index(library) if library in sys.path else len(sys.path)
    sys.path[:] = [
        entry
        for place, entry in enumerate(sys.path)
        if place >= own or entry == _PACKAGE_FOLDER or not is_current(entry or ".")
    ]


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that calls `main()` of a module in another interpreter, in `FOLDER`, with `environment`."""
    return source_command(f"from {module} import main; main()", *arguments)


def source_command(source: str, *arguments: str) -> list[str]:
    """Return the command that runs Python source as `command` runs a module."""
    # -I ignores the environment, so that these two options would be lost.
    options = ["-B"] * sys.dont_write_bytecode + ["-X", "utf8"] * bool(sys.flags.utf8_mode)
    path = [os.path.abspath(entry) for entry in sys.path if entry]  # noqa: PTH100  (the same)
    start = f"import sys; sys.path[:] = {path!a}\n{source}"
    return [sys.executable, "-I", *options, "-c", start, *arguments]


def environment(environ: dict[str, str]) -> dict[str, str]:
    """Return the environment without the variables of the interpreter."""
    return {name: value for name, value in environ.items() if not name.startswith("PYTHON")}


def is_current(entry: str) -> bool:
    """Return whether an entry of a module path is the current folder."""
    try:
        return os.path.samestat(os.stat(entry), os.stat("."))  # noqa: PTH116  (the same)
    except OSError:
        return False
