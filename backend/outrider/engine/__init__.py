"""The embedded engine: knows tensors, does not know HTTP clients."""
