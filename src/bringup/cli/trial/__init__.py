"""A user's own model on the way through the kit: what matched, what was captured, how fast, how
exact.

`trial_model` finds the model and its example inputs, `run` tries everything and keeps the reasons
of what does not work, `show` prints the outcome.
"""
