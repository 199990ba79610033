"""What an operator takes and gives, as text and as values. Knows no kernel.

`schema`: reading a schema. `dtypes`, `defaults`: numbers in it. `infer`: from a Python signature to
a schema. `operator_facts`: what a registered operator's schema says. `dispatch_keys`: names of
dispatch keys.
"""
