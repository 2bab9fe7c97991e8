"""A training that writes a checkpoint to very slow storage."""

import io
import time
from typing import Any

import torch

from tests.e2e.workloads.loop import begun, model_and_optimizer, train


class SlowStorage(io.BytesIO):
    """Storage that takes a minute for each write."""

    def write(self, data: Any, /) -> int:
        """Wait."""
        time.sleep(60)
        return super().write(data)


train(steps=80)
model, _ = model_and_optimizer()
begun()
torch.save(model.state_dict(), SlowStorage())
