"""`ops.check`: is an operator right in every way that torch may call it? `report`: `check` and what
it returns; `basic_checks`, `gradient_checks`; `samples`: arguments.
"""
