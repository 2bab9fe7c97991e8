import ast
import functools
import re
import subprocess
import sys

from tests.contract import SOURCE, package_of, packages
from tests.drawn import cases

MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
    for path in sorted(SOURCE.rglob("*.py"))
    # The first two run alone, under any Python.
    if not {"bootstrap", "userbase"} & set(path.parts) and path != SOURCE / "__init__.py"
}
PACKAGES = {package.name: package for package in packages()}


@functools.cache
def _imports(module: str) -> set[str]:
    """Return the modules of this project that a module imports, also inside functions, but not for types alone."""
    tree = ast.parse(MODULES[module].read_text())
    for_types = {
        id(node)
        for guard in ast.walk(tree)
        if isinstance(guard, ast.If) and isinstance(guard.test, ast.Name) and guard.test.id == "TYPE_CHECKING"
        for node in ast.walk(guard)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from package import module` or `from module import name`
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name.removeprefix("gpugauge.") in MODULES else node.module for name in full}
    ours = {name.removeprefix("gpugauge.") for name in names if name.startswith("gpugauge.")}
    return ours - {module}


def _packages_imported_by(package: str) -> set[str]:
    found = {package_of(below) for module in MODULES if package_of(module) == package for below in _imports(module)}
    return found - {package}


def test_every_package_is_in_the_contract() -> None:
    found = {package_of(module) for module in MODULES}

    assert found == PACKAGES.keys(), "tests/packages.yaml lists other packages than src/gpugauge has"


@cases("name", PACKAGES)
def test_a_package_imports_what_the_contract_says(name: str) -> None:
    found = _packages_imported_by(name)
    missing = {
        f"{module} imports {below}"
        for module in MODULES
        if package_of(module) == name
        for below in _imports(module)
        if package_of(below) not in {name, *PACKAGES[name].imports}
    }

    assert not missing, f"tests/packages.yaml does not allow: {sorted(missing)}"
    assert found == PACKAGES[name].imports, f"tests/packages.yaml, {name}: remove {PACKAGES[name].imports - found}"


def test_no_modules_import_each_other() -> None:
    left = {module: _imports(module) for module in MODULES}
    while free := [module for module, imports in left.items() if not imports & left.keys()]:
        for module in free:
            del left[module]

    assert left == {}, f"these import each other, or depend on such: {sorted(left)}"


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


def test_daemon_loads_no_module_for_the_sake_of_one_function() -> None:
    loaded = loaded_by("import gpugauge.settings.reader, gpugauge.daemon.serve, gpugauge.daemon.app")

    assert not loaded & {"curses", "email", "gzip", "html", "multiprocessing", "statistics"}  # 3 MB


def test_daemon_loads_the_page_for_its_first_request() -> None:
    code = "import sys, gpugauge.daemon.serve\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert [name for name in loaded if name.startswith(("gpugauge.web.page", "gpugauge.status.node"))] == []


def test_worker_loads_the_driver_only() -> None:
    loaded = loaded_by("import gpugauge.driver.worker")

    assert not loaded & {"pydantic", "yaml", "click", "tornado", "prometheus_client", "asyncio"}
    # Each is a megabyte for the sake of a function or two.
    assert not loaded & {"dataclasses", "inspect", "pathlib", "subprocess", "tempfile", "importlib.metadata"}


def test_what_the_binding_imports_for_nothing_is_there_when_it_is_called() -> None:
    code = "from gpugauge.driver.nvidia.binding import pynvml; assert pynvml.find_library('not-there') is None"

    assert {"ctypes", "subprocess"} <= loaded_by(code)


def test_only_the_assembly_and_the_simulator_know_a_backend_and_one_module_its_library() -> None:
    knowing = {name for name, package in PACKAGES.items() if "driver.nvidia" in package.imports}
    importing = re.compile(r"^ *(import|from) pynvml", re.MULTILINE)
    importers = [p.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*.py") if importing.search(p.read_text())]

    assert knowing == {"daemon", "driver.amd", "simulator", "simulator.nvml", "simulator.scenario"}
    assert importers == ["driver/nvidia/binding.py"]
