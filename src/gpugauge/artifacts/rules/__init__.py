"""Recording and alerting rules."""
