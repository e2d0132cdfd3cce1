"""Order and limits, and the one path of a request. Does not know bytes."""
