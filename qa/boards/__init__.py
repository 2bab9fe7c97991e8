"""`python -m qa.boards --out FOLDER`: each dashboard in several states of a fleet, drawn with Grafana's components."""
