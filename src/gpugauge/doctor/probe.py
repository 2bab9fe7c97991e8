"""Program that the doctor runs in the examined Python: `python -c SOURCE facts|timings`.

It reports each part as soon as it is known, so that a crash or a hang loses only the rest. It needs Python 3.8 and the
standard library, and uses torch if it is installed.
"""

from __future__ import annotations

import json
import platform
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

MARK = "gpugauge-probe "
_MEASUREMENT_SECONDS = 0.25  # approximate duration of one measurement
_MATRIX_SIZE = 4096
_COPY_BYTES = 256 << 20


def report(**facts: Any) -> None:
    """Write a part of the result: one line of JSON with a mark that distinguishes it from other output."""
    sys.stdout.write("\n" + MARK + json.dumps(facts) + "\n")
    sys.stdout.flush()


def facts() -> None:
    """Report this Python, its torch and the devices that torch finds."""
    report(stage="starting", executable=sys.executable, python=platform.python_version(), prefix=sys.prefix)
    torch = imported()
    if torch is None:
        return
    mps = getattr(torch.backends, "mps", None)
    report(
        stage="reading the build of torch",
        torch=str(torch.__version__),
        file=str(torch.__file__),
        cuda=torch.version.cuda,
        hip=getattr(torch.version, "hip", None),
        xpu=getattr(torch.version, "xpu", None),
        mps_built=bool(mps and mps.is_built()),
        mps_available=bool(mps and mps.is_available()),
    )
    # Compiled in, so that they are available without a driver.
    internals = torch._C  # noqa: SLF001 - torch.cuda does not export these
    flags = getattr(internals, "_cuda_getArchFlags", None)
    report(stage="opening CUDA", architectures=((flags() if flags else None) or "").split())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = bool(torch.cuda.is_available())
        error = None
        if not available and (torch.version.cuda or getattr(torch.version, "hip", None)):
            error = _failure(torch.cuda.init)  # raises the reason, which is_available does not return
    report(
        stage="reading the devices",
        available=available,
        error=error,
        warnings=[str(w.message).strip().split("\n")[0] for w in caught],
        driver_cuda=_answer(getattr(internals, "_cuda_getDriverVersion", None)),
    )
    if available:
        report(devices=[_device(torch, index) for index in range(torch.cuda.device_count())])
    report(stage="done", cudnn=_answer(torch.backends.cudnn.version), threads=torch.get_num_threads())


def imported() -> Any:
    """Import and return torch, or report the error."""
    report(stage="importing torch")
    try:
        import torch  # noqa: PLC0415 - the error is part of the result
    except ModuleNotFoundError as error:
        report(stage="done", missing=error.name == "torch", import_error=str(error))
    except BaseException as error:  # noqa: BLE001 - a broken installation may raise anything
        report(stage="done", missing=False, import_error=type(error).__name__ + ": " + str(error))
    else:
        return torch
    return None


def _device(torch: Any, index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)  # torch 2.4 and newer
    return {
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "memory": properties.total_memory,
        "uuid": None if uuid is None else str(uuid),
        # On CUDA it is the name of the product.
        "gcn": getattr(properties, "gcnArchName", None) if getattr(torch.version, "hip", None) else None,
    }


def _failure(function: Callable[[], object]) -> str | None:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - the error is the result
        return type(error).__name__ + ": " + str(error).strip().split("\n")[0]
    return None


def _answer(function: Any) -> Any:
    try:
        return function()
    except Exception:  # noqa: BLE001 - the value is unknown
        return None


def timings() -> None:
    """Measure torch's first device, and the CPU for comparison."""
    torch = imported()
    if torch is None:
        return
    device = "cuda" if torch.cuda.is_available() else "mps"
    for stage, key, measure in (
        ("multiplying matrices", "matmul", matrix_products),
        ("copying to the device", "copies", copies),
        ("training", "steps", training_steps),
    ):
        report(stage=stage)
        try:
            report(**{key: measure(torch, device)})
        except Exception as error:  # noqa: BLE001 - the other measurements may succeed
            report(**{key + "_error": type(error).__name__ + ": " + str(error).strip().split("\n")[0]})
    report(stage="done")


def matrix_products(torch: Any, device: str) -> dict[str, float]:
    """Return floating point operations per second by dtype, without the dtypes that the device does not support."""
    found = {}
    kinds = [("float32", "float32", "highest"), ("tf32", "float32", "high")]
    kinds += [("float16", "float16", "highest"), ("bfloat16", "bfloat16", "highest")]
    for name, dtype, precision in kinds:
        if name == "tf32" and (device != "cuda" or not torch.version.cuda):
            continue
        try:
            torch.set_float32_matmul_precision(precision)
            a = torch.randn(_MATRIX_SIZE, _MATRIX_SIZE, device=device, dtype=getattr(torch, dtype))
            found[name] = 2 * _MATRIX_SIZE**3 / each(torch, device, partial(torch.matmul, a, a))
        except (RuntimeError, TypeError):
            continue
        finally:
            torch.set_float32_matmul_precision("highest")
    return found


def copies(torch: Any, device: str) -> dict[str, float]:
    """Return bytes per second from host to device, from pageable and from pinned memory."""
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8)
    target = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    found = {"pageable": _COPY_BYTES / each(torch, device, lambda: target.copy_(source))}
    if device == "cuda":
        pinned = source.pin_memory()
        found["pinned"] = _COPY_BYTES / each(torch, device, lambda: target.copy_(pinned, non_blocking=True))
    return found


def training_steps(torch: Any, device: str) -> dict[str, float]:
    """Return the seconds of the same small training step on the CPU and on the device."""
    return {"cpu": training_step(torch, "cpu"), "gpu": training_step(torch, device)}


def training_step(torch: Any, device: str) -> float:
    """Return the seconds of a step: two layers with 8 million parameters, 256 samples, SGD."""
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(256, 1024, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return each(torch, device, step)


def each(torch: Any, device: str, work: Callable[[], object]) -> float:
    """Return the mean seconds of a call of `work` after a first one, with the asynchronous work of the device."""
    work()
    seconds = _repeated(torch, device, work, 1)
    count = max(1, min(1000, int(_MEASUREMENT_SECONDS / max(seconds, 1e-6))))
    return _repeated(torch, device, work, count)


def _repeated(torch: Any, device: str, work: Callable[[], object], count: int) -> float:
    synchronize = getattr(torch, device).synchronize if device != "cpu" else lambda: None
    synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        work()
    synchronize()
    return (time.perf_counter() - begin) / count


if __name__ == "__main__":
    # With -c the current folder comes first; a torch.py in it is not what a script in another folder imports.
    sys.path[:] = [entry for entry in sys.path if entry]
    {"facts": facts, "timings": timings}[sys.argv[1]]()
