"""Drafters of the embedded engine."""
