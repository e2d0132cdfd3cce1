"""`outrider speedup`: what speculation would gain by the published formula."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider.policy.speedup import best_k, expected_tokens, pass_cost
from outrider.policy.speedup import speedup as speedup_of


def speedup(
    alpha: Annotated[float, typer.Option(min=0, max=1, help="Probability that a draft token is accepted.")],
    k: Annotated[int, typer.Option(min=0, help="Draft tokens per pass.")],
    c: Annotated[float, typer.Option(min=0, help="Cost of one draft step, in plain decode steps.")],
    verify_cost: Annotated[float, typer.Option(min=0.01, help="Cost of a verify pass, in plain decode steps.")] = 1.0,
) -> None:
    """Print the speed-up that the published formula promises, and the best k."""
    best = best_k(alpha, c, verify_cost)
    gain = f"speed-up {speedup_of(alpha, best, c, verify_cost):.2f}" if best else "no k gains"
    typer.echo(f"tokens per pass  {expected_tokens(alpha, k):.2f}")
    typer.echo(f"cost per pass    {pass_cost(k, c, verify_cost):.2f} plain decode steps")
    typer.echo(f"speed-up         {speedup_of(alpha, k, c, verify_cost):.2f}")
    typer.echo(f"best k           {best} ({gain})")
