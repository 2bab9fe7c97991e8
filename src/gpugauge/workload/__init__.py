"""Workloads of processes: identity, container, pod, job and user, from the kernel and the orchestrators."""
