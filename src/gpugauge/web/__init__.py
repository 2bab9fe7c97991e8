"""The HTTP server and its routes."""
