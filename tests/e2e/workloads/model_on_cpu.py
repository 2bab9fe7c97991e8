"""The model was left on the CPU. This build of torch says that it is one for CUDA, as the one at fault would be."""

import torch

torch.version.cuda = "12.8"

from tests.e2e.workloads.loop import train  # noqa: E402  (after torch is made to say so)

train()
