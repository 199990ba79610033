"""torch's own tests of collectives and of DDP on the device, in three processes."""

from __future__ import annotations

from tests.distributed.ranks import run

EXPECTED = {
    "test_SyncBatchNorm_process_group": "wants torchvision",
    "test_batch_isend_irecv_mixed_backend_err": "wants NCCL",
    "test_batch_isend_irecv_op_err": "wants CUDA devices",
    "test_ddp_logging_data_cpu": "torch measures a reducer's times on cpu and CUDA alone",
    "test_get_backend": "the group's backends are cpu:gloo,npu:bringup",
    "test_monitored_barrier_failure_order": "wants gloo by name",
    "test_monitored_barrier_gloo": "wants gloo by name",
    "test_monitored_barrier_gloo_subgroup": "wants gloo by name",
    "test_monitored_barrier_wait_all_ranks": "wants gloo by name",
    "test_new_subgroups_with_group_param": "wants more ranks",
    "test_sparse_all_reduce_sum": "collectives take dense tensors",
}


def test_torchs_tests_hold_but_for_those_with_a_reason() -> None:
    """`make test` has a twentieth."""
    outcome = run("torch_tests", ranks=3)
    assert set(outcome.failed) == set(EXPECTED) & set(outcome.asked), outcome.failed
    assert outcome.codes == (0, 0, 0), outcome.text
    assert set(outcome.passed) | set(outcome.failed) == set(outcome.asked) != set()
