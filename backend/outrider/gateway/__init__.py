"""The HTTP edge: bytes, headers, status codes. Does not know models."""
