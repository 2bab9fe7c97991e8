"""What a person ran in a notebook before they went home."""

from tests.e2e.workloads.loop import begun, train

train(steps=300)
begun()
