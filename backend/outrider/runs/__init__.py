"""Durable runs: what is kept of them, and who looks after them. Does not know bytes of answers, lanes or HTTP."""
