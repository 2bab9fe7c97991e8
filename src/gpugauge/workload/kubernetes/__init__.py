"""The pods of this node and their controllers, from the cluster: its kubelet or its API."""
