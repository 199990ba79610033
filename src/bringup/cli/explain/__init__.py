"""What passes do to a model: why one matched or did not, and which rewrite made a result wrong.

`model` loads what is explained, `run` does it, `show` prints it.
"""
