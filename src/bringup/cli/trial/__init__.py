"""A user's own model on the way through the kit: `trial_model` finds it, `run` tries, `show`
prints.
"""
