"""The vendors of GPUs that gpugauge reads, and what it knows about their products."""

from __future__ import annotations

from gpugauge.driver.vendors.amd import AMD
from gpugauge.driver.vendors.nvidia import NVIDIA
from gpugauge.driver.vendors.vendor import DTYPES, Peak, Vendor

__all__ = ["NO_GPU", "VENDORS", "Vendor", "peak", "product_name", "tensor_speedup", "vendor_named"]
VENDORS: tuple[Vendor, ...] = (NVIDIA, AMD)
NO_GPU = f"no {' or '.join(vendor.name for vendor in VENDORS)} GPU on this machine"
_T = 1e12


def vendor_named(name: object, otherwise: Vendor = NVIDIA) -> Vendor:
    """Return the vendor with a name."""
    return next((vendor for vendor in VENDORS if vendor.name == name), otherwise)


def product_name(name: str) -> str:
    """Return the full name of a product without that of its vendor."""
    for vendor in VENDORS:
        name = name.removeprefix(f"{vendor.name} ")
    return name


def peak(name: str, dtype: str) -> float | None:
    """Return the peak in FLOP/s of a GPU by its full name; None for a product or a dtype that is not in the table."""
    found = _product(name)
    rate: float | None = getattr(found, dtype) if found is not None and dtype in DTYPES else None
    return None if rate is None else rate * _T


def tensor_speedup(name: str) -> float:
    """Return the fastest rate of the tensor cores by that of float32 without them; the largest of all if unknown."""
    found = _product(name)
    return found.tensor_speedup if found else max(entry.tensor_speedup for v in VENDORS for entry in v.peaks)


def _product(name: str) -> Peak | None:
    return next((entry for vendor in VENDORS for entry in vendor.peaks if entry.matches(name)), None)
