"""The bytes of a scrape: Prometheus text and OpenMetrics."""
