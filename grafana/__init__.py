"""The dashboards for Grafana, and the package that makes them."""
