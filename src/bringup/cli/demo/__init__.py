"""The main job: real sentences through a real model, from plain PyTorch to captured graphs.

`texts` reads the sentences, `model` loads the model and gives it lengths as an input, `modes` makes
the four ways of running it, `measure` times and compares them, `show` prints and writes the
outcome, `run` puts them together.
"""
