"""Peak rates of NVIDIA's GPUs by product and dtype: dense matrix products, at the boost clock, in FLOP/s.

NVIDIA gives rates of tensor cores with sparsity, marked with an asterisk: those are halved here. Rates of float16 are
those with accumulation in float32, which torch uses by default. tf32 is float32 rounded for tensor cores; float32
is without tensor cores. A product that is not in the table has no peak: a rate of another one would be wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MAKER = re.compile(r"^(NVIDIA |Tesla )+")


@dataclass(frozen=True)
class Peak:
    """The rates of a product in TFLOP/s, and its name as torch and the driver give it, without its maker."""

    name: str  # a regular expression for the whole name
    float32: float
    tf32: float | None = None
    bfloat16: float | None = None
    float16: float | None = None

    @property
    def tensor_speedup(self) -> float:
        """The fastest rate of the tensor cores, by that of float32 without them."""
        return max(self.tf32 or 0.0, self.bfloat16 or 0.0, self.float16 or 0.0, self.float32) / self.float32

    def matches(self, name: str) -> bool:
        """Return whether a full name is of this product."""
        return re.fullmatch(self.name, _MAKER.sub("", name)) is not None


PEAKS = (
    # Data sheets "NVIDIA V100" and "NVIDIA T4": no tf32 and no bfloat16 in the tensor cores of Volta and Turing.
    Peak(r"V100-SXM2-(16|32)GB", 15.7, float16=125),
    Peak(r"V100-PCIE-(16|32)GB", 14, float16=112),
    Peak(r"V100S-PCIE-32GB", 16.4, float16=130),
    Peak(r"T4", 8.1, float16=65),
    # Data sheet "NVIDIA A100 Tensor Core GPU": 19.5; 156 | 312*; 312 | 624*, for 40 GB and 80 GB, SXM and PCIe alike.
    Peak(r"A100([- ]SXM4-(40|80)GB|-PCIE-40GB| 80GB PCIe)", 19.5, 156, 312, 312),
    # Data sheet "NVIDIA A30 Tensor Core GPU": 10.3; 82 | 165*; 165 | 330*.
    Peak(r"A30", 10.3, 82, 165, 165),
    # Data sheet "NVIDIA A10 Tensor Core GPU": 31.2; 62.5 | 125*; 125 | 250*. Sources differ about the A10G.
    Peak(r"A10", 31.2, 62.5, 125, 125),
    # Data sheet "NVIDIA A40": 37.4; 74.8 | 149.6*; 149.7 | 299.4*.
    Peak(r"A40", 37.4, 74.8, 149.7, 149.7),
    # White paper "NVIDIA Ampere GA102 GPU Architecture", RTX A6000: 38.7; 77.4; 154.8.
    Peak(r"RTX A6000", 38.7, 77.4, 154.8, 154.8),
    # Data sheet "NVIDIA L4 Tensor Core GPU": 30.3; 120*; 242*.
    Peak(r"L4", 30.3, 60, 121, 121),
    # Data sheet "NVIDIA L40": 90.5; 90.5 | 181*; 181.05 | 362.1*.
    Peak(r"L40", 90.5, 90.5, 181.05, 181.05),
    # Data sheet "NVIDIA L40S": 91.6; 183 | 366*; 362.05 | 733*.
    Peak(r"L40S", 91.6, 183, 362.05, 362.05),
    # Data sheet "NVIDIA H100 Tensor Core GPU", its editions: SXM 67; 989*; 1,979*. PCIe 51; 756*; 1,513*.
    # NVL 60; 835*; 1,671*.
    Peak(r"H100 80GB HBM3", 67, 494.5, 989.5, 989.5),
    Peak(r"H100 PCIe", 51, 378, 756.5, 756.5),
    Peak(r"H100 NVL", 60, 417.5, 835.5, 835.5),
    # Product page "NVIDIA H200": SXM 67; 989*; 1,979*. NVL 60; 835*; 1,671*. A data sheet of July 2024 still gave the
    # NVL the rates of the SXM.
    Peak(r"H200", 67, 494.5, 989.5, 989.5),
    Peak(r"H200 NVL", 60, 417.5, 835.5, 835.5),
    # Data sheet "NVIDIA GH200 Grace Hopper Superchip": 67; 494 | 989*; 990 | 1,979*.
    Peak(r"GH200 (120|144|480|624)GB", 67, 494.5, 989.5, 989.5),
    # Product page "NVIDIA HGX", HGX B200 with eight GPUs: 600; 18,000*; 36,000*.
    Peak(r"B200", 75, 1125, 2250, 2250),
    # White paper "NVIDIA Ampere GA102 GPU Architecture", RTX 3090: 35.6; 35.6; 71. The RTX 3070 by its multiprocessors
    # and its boost clock at the same rates. The name RTX 3080 is of two products.
    Peak(r"GeForce RTX 3090", 35.6, 35.6, 71, 71),
    Peak(r"GeForce RTX 3070", 20.3, 20.3, 40.6, 40.6),
    # White paper "NVIDIA Ada GPU Architecture", RTX 4090: 82.6; 82.6; 165.2 | 330.4*. The other two by their
    # multiprocessors and their boost clocks at the same rates.
    Peak(r"GeForce RTX 4090", 82.6, 82.6, 165.2, 165.2),
    Peak(r"GeForce RTX 4080", 48.7, 48.7, 97.5, 97.5),
    Peak(r"GeForce RTX 4070 Ti", 40.1, 40.1, 80.2, 80.2),
    # White paper "NVIDIA RTX Blackwell GPU Architecture", RTX 5090: 104.8; 104.8; 209.5 | 419*.
    Peak(r"GeForce RTX 5090", 104.8, 104.8, 209.5, 209.5),
)  # fmt: skip
DTYPES = ("float32", "tf32", "bfloat16", "float16")
