"""Where tokens come from: lanes, their processes, their load. A lane is always an HTTP server."""
