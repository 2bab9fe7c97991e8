"""The settings: the model, and how it is read from file, environment and flags."""
