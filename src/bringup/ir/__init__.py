"""The graph that passes see; what an operator is comes from a Dialect. Never imports torch."""
