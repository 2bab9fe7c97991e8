"""Rendering of the body of a scrape: Prometheus text and OpenMetrics."""
