"""The verdict on a training process: pure functions from evidence to a state and to the causes of lost GPU time."""
