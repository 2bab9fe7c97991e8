"""The prices of GPU hours and of energy, from a file that a site writes. None is assumed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gpugauge.report.model import Cost, GpuHours
from gpugauge.settings.yaml_model import YamlModel

_JOULES = 3.6e6  # of a kilowatt hour
_Amount = Annotated[float, Field(ge=0)]


class Prices(BaseModel):
    """The keys of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    currency: str = Field(default="", max_length=8)
    gpu_hour: Mapping[str, _Amount] = Field(default_factory=dict)  # by the name in gpu_info
    pue: Annotated[float, Field(ge=1)] | None = None
    co2e_grams_per_kilowatt_hour: _Amount | None = None

    def cost(self, products: Mapping[str, GpuHours], joules: float | None) -> Cost | None:
        """Return what GPU hours by product, and energy, cost, None without a file."""
        if self is NO_PRICES:
            return None
        known = bool(products) and not self._without(products)
        each = [(self.gpu_hour.get(product, 0.0), hours) for product, hours in products.items()]
        held = sum(price * hours.held for price, hours in each) if known else None
        lost = sum(price * hours.all_lost for price, hours in each) if known else None
        energy = joules / _JOULES * self.pue if joules is not None and self.pue is not None else None
        grams = self.co2e_grams_per_kilowatt_hour
        co2e = energy * grams if energy is not None and grams is not None else None
        return Cost(self.currency, held, lost, energy, co2e)

    def missing(self, products: Mapping[str, GpuHours]) -> list[str]:
        """Return sentences about the products without a price."""
        without = ", ".join(product or "GPUs whose name is not known" for product in self._without(products))
        return [f"The cost is not known, without a price of: {without}."] if self.gpu_hour and without else []

    def _without(self, products: Mapping[str, GpuHours]) -> list[str]:
        return [product for product, hours in products.items() if hours.held and product not in self.gpu_hour]


NO_PRICES = Prices()
_FILE = YamlModel(Prices, "file of prices")


def read(file: Path | None) -> Prices:
    """Return the prices in a file. Raises ConfigError with its lines."""
    return _FILE.validate(_FILE.read(file)) if file else NO_PRICES
