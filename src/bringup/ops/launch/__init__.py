"""Kernels without an operator: functions of a library with raw arguments.

`launcher`: `KernelLauncher`. `two_phase`: functions that first ask for a workspace. `call_context`:
device, stream, order. `memory`, `scalars`: raw arguments. `ascendc`, `ascendc_op`: AscendC.
"""
