"""Kernels for operators that exist, on the device of the loaded driver; calls are native.

Read `family` (which overloads one declaration covers), `entry` (the code around an author's
function), `planning` (which binary runs, what its results are), `operator_kernel`.
"""
