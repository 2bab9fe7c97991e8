"""One model of a node for people; page, API and command line render it."""
