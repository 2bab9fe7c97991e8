"""The sitecustomize of an interpreter that loads modules, and forks for each program before its own start is over.

A fork takes the environment, the folder, the arguments and the standard streams of its program, imports the
sitecustomize of that environment, and returns. The interpreter then goes on with its start and runs the script: the
main module and its frame, atexit, signals and the exit code are those of every start. tests/hook/forks.py has the other
side.

A package that is loaded here is in sys.modules only once the program imports it: the hook waits for torch, and its
finder is called, as for a torch that is loaded from its files.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.machinery
import json
import multiprocessing.process
import os
import select
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOM = 1 << 18  # for a request, which is an environment mostly


class Loaded:
    """A finder for sys.meta_path of modules that are loaded, but not in sys.modules: those which the import of `name`
    adds to its package. Once the program imports `name`, all are imported, and the finders of the hook see each.
    """

    def __init__(self, name: str) -> None:
        before, package = set(sys.modules), name.partition(".")[0]
        importlib.import_module(name)
        self.name, self.all = name, [key for key in sys.modules if key not in before]
        self.modules = {key: sys.modules[key] for key in self.all if key.partition(".")[0] == package}
        # C code and packages add some themselves, without a spec.
        specs = {key: getattr(module, "__spec__", None) for key, module in self.modules.items()}
        self.specs = {key: spec for key, spec in specs.items() if spec is not None}

    def hide(self) -> None:
        """Undo what the import system has done with the modules."""
        for name in self.modules:
            package, _, last = name.rpartition(".")
            if package and package not in self.modules:
                vars(sys.modules[package]).pop(last, None)
        for name in self.modules:
            del sys.modules[name]

    def release(self) -> None:
        """Take all that was imported out of sys.modules, for good."""
        for name in self.all:
            sys.modules.pop(name, None)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:
        """Return a spec of a module."""
        return importlib.machinery.ModuleSpec(name, Loader(self, name)) if name in self.specs else None  # type: ignore[arg-type]  # a loader by its methods


class Loader:
    """The loader of a module that is loaded."""

    def __init__(self, loaded: Loaded, name: str) -> None:
        self.loaded, self.name = loaded, name

    def create_module(self, _: object) -> ModuleType:
        """Return the module."""
        return self.loaded.modules[self.name]

    def exec_module(self, _: ModuleType) -> None:
        """Import the modules that come with it: of a package its own, and all of the first one."""
        loaded, whole = self.loaded, self.name == self.loaded.name
        for name in loaded.modules:
            if name != self.name and (whole or name.startswith(f"{self.name}.")):
                if name in loaded.specs:
                    importlib.import_module(name)
                else:
                    sys.modules[name] = loaded.modules[name]
        vars(loaded.modules[self.name])["__spec__"] = loaded.specs[self.name]


def serve(control: socket.socket) -> dict[str, Any]:
    """Fork for each request, and return it in the fork. Report the end of each fork. Exit after the last request."""
    running: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in running:
                poll.unregister(descriptor)
                process, status = running.pop(descriptor)
                code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                with status, contextlib.suppress(OSError):  # the test is over
                    status.send(str(code).encode())
                os.close(descriptor)
                continue
            request, descriptors, _, _ = socket.recv_fds(control, ROOM, 4)
            if not request:
                os._exit(0)
            *streams, status_descriptor = descriptors
            process = os.fork()
            if not process:
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                for other in (control, *(status for _, status in running.values())):
                    other.detach()
                os.closerange(3, 1 << 16)
                return json.loads(request)  # type: ignore[no-any-return]  # what forks.py sends
            status, pidfd = socket.socket(fileno=status_descriptor), os.pidfd_open(process)
            socket.send_fds(status, [str(process).encode()], [pidfd])
            running[pidfd] = process, status
            poll.register(pidfd, select.POLLIN)
            for stream in streams:
                os.close(stream)


def become(request: dict[str, Any]) -> None:
    """Take what an interpreter takes from the system at its start, and import the sitecustomize of the environment."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.argv[:] = request["arguments"]
    vars(multiprocessing.process)["ORIGINAL_DIR"] = request["folder"]  # taken when it is imported
    place = sys.path.index(str(Path(__file__).parent))
    sys.path[place : place + 1] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    del sys.modules["sitecustomize"]
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")


def main() -> None:
    """Load the modules that the environment names, then serve. Only a fork returns."""
    control = socket.socket(fileno=int(os.environ["GPUGAUGE_FORKS"]))
    loaded: list[Any] = []
    # The last function of atexit to run. The end of the modules would take longer than most programs.
    atexit.register(lambda: [package.release() for package in loaded])
    loaded += map(Loaded, os.environ["GPUGAUGE_FORKS_PACKAGES"].split())
    for package in reversed(loaded):
        package.hide()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork would miss the other threads"
    kept = [*loaded]
    kept.append(kept)  # a cycle, which the collector does not see once it is frozen: the modules never end
    gc.freeze()
    request = serve(control)
    sys.meta_path[:0] = loaded
    become(request)


main()
