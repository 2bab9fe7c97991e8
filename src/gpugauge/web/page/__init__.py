"""The page for people at `/`: server-side HTML from the same facts as /api/v1/status (docs/http.md)."""
