"""Kernels for operators that exist, on the device of the loaded driver.

Read `family` (which overloads one declaration covers), `entry` (the code around an author's
function), `planning` (which binary runs for a call, and what its results are) and `operator_kernel`
(the public function). The call itself is native (native/torch/operators).
"""
