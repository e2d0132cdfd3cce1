"""Probability and nothing else: target law, proposals, verification, as pure tensor functions."""
