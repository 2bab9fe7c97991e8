"""Files generated from the catalogue: the reference of the metrics, rules and dashboards."""
