"""Graph rewrites written in Python. Never imports torch."""
