import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "gpugauge"

# What each room may import from the others (docs/architecture.md); a room is a module or a package of src/gpugauge.
ALLOWED = {
    "metric": set(),
    "snapshot": {"metric"},
    "wire": set(),
    "buildinfo": set(),
    "architecture": set(),
    "timetable": set(),
    "driver": {"logs", "plainyaml", "session", "timetable", "wire"},
    "workload": {"logs"},
    "verdict": {"architecture", "metric", "snapshot"},
    "hook": {"wire"},
    "session": {"wire"},
    "sessions": {"logs", "session", "wire"},
    "launch": {"hook", "wire"},
    "collectors": {"buildinfo", "verdict", "logs", "driver", "workload", "wire", "session", "metric", "snapshot"},
    "catalog": {"collectors", "metric"},
    "artifacts": {"catalog", "metric", "verdict"},
    "selection": {"snapshot"},
    "sampler": {"collectors", "driver", "logs", "snapshot", "timetable"},
    "exposition": {"catalog", "metric", "snapshot"},
    "history": {"metric", "snapshot"},
    "status": {"driver", "history", "metric", "server", "snapshot"},
    "statusview": {"webclient"},
    "webclient": set(),
    "listen": set(),
    "server": {"listen", "logs"},
    "guard": {"server"},
    "webconfig": {"config", "logs", "server"},
    "page": {"history", "server", "snapshot", "status", "verdict"},
    "routes": {"exposition", "server", "timetable"},
    "activation": set(),
    "logs": set(),
    "sdnotify": set(),
    "simulation": {"driver", "sessions", "workload"},
    "plainyaml": set(),
    "config": {"plainyaml"},
    "duration": set(),
    "lifecycle": {"driver", "duration", "guard", "server"},
    "reload": {"config", "logs", "selection"},
    "remote": set(),
    "app": {"assembly", "config", "driver", "logs", "reload"},
    "assembly": {
        *("activation", "catalog", "collectors", "config", "driver", "exposition", "history", "logs", "status"),
        *("listen", "page", "routes", "sampler", "sdnotify", "selection", "server", "session", "snapshot"),
        *("guard", "lifecycle", "reload", "sessions", "simulation", "timetable", "wire", "webconfig", "workload"),
    },
    "doctor": {"architecture", "collectors", "driver", "logs", "verdict", "webclient", "workload"},
    "daemon": {"app", "config", "driver", "listen", "logs", "selection", "sessions"},
    "cli": {"artifacts", "buildinfo", "config", "daemon", "doctor", "driver", "launch", "remote", "statusview"},
    "main": {"cli", "config", "daemon"},
}


def room(path: Path) -> str:
    # config_load.py and config_reference.py are of the room config, sessions_socket.py of the room sessions.
    return path.relative_to(SOURCE).parts[0].removesuffix(".py").strip("_").split("_")[0]


def imported_rooms(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    # `from gpugauge import __version__` and `import gpugauge` import the root, which imports nothing.
    files = {name.split(".")[1] for name in names if name.startswith("gpugauge.")}
    return {name.split("_")[0] for name in files if (SOURCE / name).exists() or (SOURCE / f"{name}.py").exists()}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_run_down_only(path: Path) -> None:
    if path == SOURCE / "__init__.py":
        assert imported_rooms(path) == set()
        return

    assert imported_rooms(path) <= ALLOWED[room(path)] | {room(path)}


def test_every_room_is_listed() -> None:
    rooms = {room(p) for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py"}

    assert rooms <= ALLOWED.keys()


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return {name.split(".")[0] for name in out.split()}


def test_hook_loads_the_standard_library_only() -> None:
    before, after = loaded_by(""), loaded_by("import gpugauge.hook")

    assert after - before - {"gpugauge"} <= set(sys.stdlib_module_names)


def test_daemon_never_loads_torch() -> None:
    assert "torch" not in loaded_by("import gpugauge.daemon, gpugauge.cli")


def test_a_real_node_loads_neither_simulator_nor_client_library() -> None:
    code = "import sys, gpugauge.daemon, gpugauge.cli\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    # The package itself holds an exception; what it consists of is for --simulate.
    assert [name for name in loaded if name.startswith(("gpugauge.driver.simulated.", "prometheus_client"))] == []


def test_daemon_loads_nothing_that_reads_settings() -> None:
    loaded = loaded_by("import gpugauge.__main__, gpugauge.config_child, gpugauge.daemon")

    assert not loaded & {"pydantic", "pydantic_core", "annotated_types", "click", "yaml"}


def test_worker_loads_the_driver_only() -> None:
    loaded = loaded_by("import gpugauge.driver.worker")

    assert not loaded & {"pydantic", "yaml", "click", "tornado", "prometheus_client", "asyncio"}
    # Each is a megabyte for the sake of a function or two.
    assert not loaded & {"dataclasses", "inspect", "subprocess", "tempfile", "importlib.metadata"}


def test_what_the_binding_imports_for_nothing_is_there_when_it_is_called() -> None:
    code = "from gpugauge.driver.binding import pynvml; assert pynvml.find_library('not-there') is None"

    assert {"ctypes", "subprocess"} <= loaded_by(code)


def test_only_one_module_imports_pynvml() -> None:
    importing = re.compile(r"^ *(import|from) pynvml", re.MULTILINE)
    importers = [p.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*.py") if importing.search(p.read_text())]

    assert importers == ["driver/binding.py"]
