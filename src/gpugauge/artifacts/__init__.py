"""What is made from the catalogue: the reference of the metrics."""
