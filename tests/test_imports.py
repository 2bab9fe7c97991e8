import re
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "gpugauge"


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return {name.split(".")[0] for name in out.split()}


def test_hook_loads_the_standard_library_only() -> None:
    before, after = loaded_by(""), loaded_by("import gpugauge.hook")

    assert after - before - {"gpugauge"} <= set(sys.stdlib_module_names)


def test_daemon_never_loads_torch() -> None:
    assert "torch" not in loaded_by("import gpugauge.daemon.serve, gpugauge.cli.main")


def test_a_real_node_loads_neither_simulator_nor_client_library() -> None:
    code = "import sys, gpugauge.daemon.serve, gpugauge.cli.main\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    # The package itself holds an exception; what it consists of is for --simulate.
    assert [name for name in loaded if name.startswith(("gpugauge.simulator.", "prometheus_client"))] == []


def test_daemon_loads_nothing_that_reads_settings() -> None:
    loaded = loaded_by("import gpugauge.__main__, gpugauge.settings.reader, gpugauge.daemon.serve")

    assert not loaded & {"pydantic", "pydantic_core", "annotated_types", "click", "yaml"}


def test_worker_loads_the_driver_only() -> None:
    loaded = loaded_by("import gpugauge.driver.worker")

    assert not loaded & {"pydantic", "yaml", "click", "tornado", "prometheus_client", "asyncio"}
    # Each is a megabyte for the sake of a function or two.
    assert not loaded & {"dataclasses", "inspect", "subprocess", "tempfile", "importlib.metadata"}


def test_what_the_binding_imports_for_nothing_is_there_when_it_is_called() -> None:
    code = "from gpugauge.driver.nvidia.binding import pynvml; assert pynvml.find_library('not-there') is None"

    assert {"ctypes", "subprocess"} <= loaded_by(code)


def test_only_one_module_imports_pynvml() -> None:
    importing = re.compile(r"^ *(import|from) pynvml", re.MULTILINE)
    importers = [p.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*.py") if importing.search(p.read_text())]

    assert importers == ["driver/nvidia/binding.py"]
