"""Prompts, load and reports."""
