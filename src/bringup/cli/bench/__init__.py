"""`bringup bench`: `subject` finds the operator and its arguments, `measure` times it beside peers
and what the machine can do, `regression` compares with an earlier run, `show` prints.
"""
