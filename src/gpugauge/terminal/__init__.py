"""The model of a node for people, on a terminal: `gpugauge status` and `gpugauge top`."""
