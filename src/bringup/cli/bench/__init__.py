"""`bringup bench`: `subject` finds the operator and its arguments, `measure` times it beside peers
and what the machine can do and compares with an earlier run, `show` prints.
"""
