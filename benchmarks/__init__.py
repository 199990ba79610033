"""Benchmarks of bringup: one module per performance row, each a ratio to a peer in one process.

`python -m benchmarks [row ...]` runs them; a row module offers `run(quick) -> list[Row]`.
"""
