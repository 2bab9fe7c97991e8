"""A training whose batches take ten times as long to load as to train on."""

from tests.e2e.workloads.loop import train

train(load=0.2)
