"""Grafana dashboards."""
