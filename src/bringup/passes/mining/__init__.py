"""What repeats in a graph: parts that are worth an operator of their own.

`mining`: finding them. `growth`: connected parts. `mined_pattern`: a pattern of one.
"""
