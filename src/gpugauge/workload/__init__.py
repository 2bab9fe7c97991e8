"""Who a pid is: what the kernel and the orchestrators tell about a process."""
