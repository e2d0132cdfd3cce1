"""EAGLE and Medusa heads for the embedded target: data that it writes itself, training, evaluation, model cards."""
