"""Mutation testing: small changes of the code that the tests must notice. `python -m qa.mutants --help`."""
