"""Double of torch for the examined Python. The variable FAKE_TORCH (JSON) defines its behaviour."""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False

import json
import os
import signal
import time
import types
import warnings

_how = json.loads(os.environ.get("FAKE_TORCH", "{}"))
if _how.get("noise"):
    print("a banner that some package prints", end="")
if _how.get("on_import") == "fail":
    raise ImportError("libcudart.so.12: cannot open shared object file")
if _how.get("on_import") == "hang":
    time.sleep(600)

__version__ = _how.get("version", "2.10.0+cu128")
__file__ = "/opt/venv/lib/torch/__init__.py"
version = types.SimpleNamespace(cuda=_how.get("cuda"), hip=_how.get("hip"))
float16, float32, bfloat16, uint8 = "float16", "float32", "bfloat16", "uint8"


def _answer(key):
    def ask():
        if _how.get(key) == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        return _how.get(key)

    return ask


def _available():
    if _how.get("warn"):
        warnings.warn(_how["warn"], stacklevel=1)
    return bool(_answer("available")())


def _init():
    if _how.get("error"):
        raise RuntimeError(_how["error"])


_C = types.SimpleNamespace(
    _cuda_getArchFlags=lambda: _how.get("arch"), _cuda_getDriverVersion=lambda: _how.get("driver")
)
cuda = types.SimpleNamespace(
    is_available=_available,
    init=_init,
    device_count=lambda: len(_how.get("devices", [])),
    # On CUDA, this is the name, as on an H100 with torch 2.11; on ROCm, a device has its own.
    get_device_properties=lambda index: types.SimpleNamespace(
        **{"gcnArchName": _how["devices"][index]["name"], **_how["devices"][index]}
    ),
    synchronize=lambda: None,
)
mps = types.SimpleNamespace(synchronize=lambda: None)
backends = types.SimpleNamespace(
    cudnn=types.SimpleNamespace(version=lambda: 91002),
    mps=types.SimpleNamespace(is_built=lambda: bool(_how.get("mps")), is_available=lambda: bool(_how.get("mps"))),
)


def get_num_threads():
    return 4


def set_float32_matmul_precision(_):
    pass


class Tensor:
    """Does no arithmetic; checks what a measurement could do wrong: the device, and whether memory is pinned."""

    def __init__(self, device="cpu", dtype=None, pinned=False):
        self.device, self.dtype, self.pinned = device, dtype, pinned

    def copy_(self, source, non_blocking=False):
        if self.device == "cpu" or source.device != "cpu" or (non_blocking and not source.pinned):
            raise RuntimeError("this is not a copy from host to device, or it cannot be asynchronous")
        return self

    def pin_memory(self):
        return Tensor(self.device, self.dtype, pinned=True)

    def square(self):
        return self

    mean = backward = square


def _made(*_, device="cpu", dtype=None):
    if dtype is not None and dtype == _how.get("lacks"):
        raise RuntimeError(f"{dtype} is not implemented")
    return Tensor(device, dtype)


randn = empty = _made


def matmul(a, b):
    if a.device == "cpu" or a.device != b.device:
        raise RuntimeError("operands are not on the device")
    time.sleep(1e-4)
    return a


class _Module:
    def __init__(self, *_):
        self.device = "cpu"

    def to(self, device):
        self.device = device
        return self

    def parameters(self):
        return [Tensor(self.device)]

    def __call__(self, batch):
        if _how.get("oom") and self.device != "cpu":
            raise RuntimeError("CUDA out of memory. Tried to allocate 16.00 MiB.")
        if batch.device != self.device:
            raise RuntimeError("Expected all tensors to be on the same device")
        time.sleep(2e-3 if self.device == "cpu" else 2e-4)
        return batch


nn = types.SimpleNamespace(Sequential=_Module, Linear=_Module, ReLU=_Module)


class _Optimizer:
    def __init__(self, *_, **__):
        pass

    def zero_grad(self):
        pass

    step = zero_grad


optim = types.SimpleNamespace(SGD=_Optimizer)
