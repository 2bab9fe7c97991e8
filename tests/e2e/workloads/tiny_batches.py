"""A training with one sample in a batch, whose time is launches."""

from tests.e2e.workloads.loop import train

train(size=1, pause=0.002)
