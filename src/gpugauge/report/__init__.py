"""What jobs used, lost and cost, from the series that a server has of them. The daemon loads nothing of it."""
