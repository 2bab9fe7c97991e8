"""A notebook cell that trains and ends; the kernel then holds its memory."""

from tests.e2e.workloads.loop import begun, train

train(steps=300)
begun()
