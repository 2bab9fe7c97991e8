"""The hook as a device of Kubernetes: a pod that asks for `gpugauge.dev/hook` gets its files and the socket."""
