"""What an operator takes and gives, as text and as values. Knows no kernel.

`schema`, `dtypes`, `defaults`: reading one. `infer`: from a Python signature. `operator_facts`: of
a registered operator. `dispatch_keys`: their names.
"""
