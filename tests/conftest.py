"""What all tests share."""

from hypothesis import settings

# Examples are bounded by number, not by time: a busy machine is not a failure.
settings.register_profile("gpugauge", deadline=None)
settings.load_profile("gpugauge")
