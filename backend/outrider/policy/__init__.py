"""When to speculate, and why: pure decisions from features and load. Does not know how."""
