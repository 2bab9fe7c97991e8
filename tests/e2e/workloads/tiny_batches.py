"""A batch is one sample, and the program does nothing but launch."""

from tests.e2e.workloads.loop import train

train(size=1, pause=0.002)
