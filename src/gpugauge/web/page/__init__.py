"""The page at `/`: HTML rendered on the server from the same data as /api/v1/status (docs/http.md)."""
