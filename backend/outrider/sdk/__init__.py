"""The client: what people import."""
