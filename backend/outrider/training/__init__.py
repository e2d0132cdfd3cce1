"""EAGLE and Medusa heads for the embedded target: data that it writes itself, training, evaluation, model cards."""

from __future__ import annotations

from typing import Literal

#: What can be trained.
Kind = Literal["eagle", "eagle3", "medusa"]
