"""What a kernel operator declares of its arguments and results: one rule each for allocation, fake
and meta. `expressions`: sizes. `constraints`: `checks=`. `outputs`: `outputs=`.
"""
