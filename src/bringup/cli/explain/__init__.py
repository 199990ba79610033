"""What passes do to a model: `model` loads it, `run` explains it, `show` prints that."""
