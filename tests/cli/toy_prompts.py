"""Two prompts for the toy model, as a file of `--prompts`."""

from __future__ import annotations

PROMPTS = """
version: 1
prompts:
  - {name: quote-a, task: quote, temperature: 0, max_tokens: 24, text: ABCDABCDAB}
  - {name: hot, task: creative, temperature: 1.2, max_tokens: 24, text: CDCDCDCDAB}
"""
