"""The web configuration file: TLS, users, access, in the format of Prometheus' exporter-toolkit."""
