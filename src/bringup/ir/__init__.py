"""The graph that passes see; what an operator is reaches it through a Dialect. Never imports torch."""
