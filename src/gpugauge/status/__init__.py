"""The model of a node for people. The page, the API and the command line render it."""
