"""`ops.check`: is an operator right in every way that torch may call it?

`report`: `check` and what it returns. `rows`, `gradients`: the checks. `samples`: arguments to
check with.
"""
