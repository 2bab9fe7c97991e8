"""The messages and the shared record of hook and daemon. Standard library only, Python 3.9."""
