"""The simulator's operator package on a training step: what falls back, and the losses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest
from tests.forked_python import PACKAGES, output_of, run_forked
from tests.gpt_program import GPT

pytestmark = pytest.mark.slow
MOST_FALLBACK_CALLS = 0.05
MOST_FALLBACK_TIME = 0.10

BEGIN = f"""
import json, sys, time
{GPT}
from bringup import devices
import bringup_sim_ops
devices.load_driver("sim")
"""

Program = Callable[..., str]


@pytest.fixture
def program() -> Program:
    """Runs code after BEGIN in a process of its own; the last line that it printed, or ""."""

    def run(code: str, **environment: str) -> str:
        done = run_forked(BEGIN + code, environment=os.environ | environment, preload=PACKAGES)
        assert done.returncode == 0, done.stdout + done.stderr
        return (done.stdout.splitlines() or [""])[-1]

    return run


STEPS = """
bringup_sim_ops.load()
def losses(device, steps=5, **options):
    step = trainer(device, **options)
    return [step().item() for _ in range(steps)]
"""
SHARES = """
torch.set_num_threads(1)  # threads that wait for each other would be the fallback's time
bringup_sim_ops.load()
step = trainer("npu", dropout=DROPOUT)
step(), step()
torch.npu.synchronize()
rounds = []
for _ in range(7):
    devices.fallback_report(reset=True)
    begin = time.perf_counter()
    step()
    torch.npu.synchronize()
    spent = time.perf_counter() - begin
    report = devices.fallback_report()
    rounds.append(report.seconds / spent)
print(json.dumps({
    "native": sum(row.calls for row in report.native), "calls": report.calls,
    "share of time": min(rounds), "rows": {row.operator: row.calls for row in report.rows},
}))
"""


@pytest.mark.parametrize("dropout", ["0.0", "0.1"])
def test_a_training_step_leaves_little_to_the_host(program: Program, dropout: str) -> None:
    """Launches are waited for: otherwise a call that falls back waits for the work of others, and
    that would be its time. The least share of the rounds: other processes only add to it.
    """
    code = SHARES.replace("DROPOUT", dropout)
    found = json.loads(program(code, BRINGUP_LAUNCH_BLOCKING="1"))
    assert found["native"] > 300
    assert found["calls"] <= MOST_FALLBACK_CALLS * (found["native"] + found["calls"]), found
    assert found["share of time"] <= MOST_FALLBACK_TIME, found


@pytest.mark.parametrize("isolated", ["0", "1"])
def test_losses_are_the_cpus(program: Program, isolated: str) -> None:
    """Also where the optimizer goes through its foreach functions, and through none."""
    program(
        STEPS
        + """
for foreach in (None, True, False):
    ours, theirs = losses("npu", foreach=foreach), losses("cpu", foreach=foreach)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=2e-4, atol=0)
    assert theirs[-1] < theirs[0]
""",
        BRINGUP_SIM_ISOLATED=isolated,
    )


def test_dropout_repeats_by_seed_and_only_then(program: Program) -> None:
    program(
        STEPS
        + """
first, second = losses("npu", dropout=0.2), losses("npu", dropout=0.2)
assert first == second
assert first != losses("npu", dropout=0.1)
torch.manual_seed(0)
x = torch.ones(1000, device="npu")
one, other = F.dropout(x, 0.5), F.dropout(x, 0.5)
assert not one.equal(other)
torch.manual_seed(0)
assert F.dropout(x, 0.5).equal(one)
"""
    )


def test_dropout_leaves_out_what_it_should_and_scales_the_rest(program: Program) -> None:
    """Shares within five standard deviations; neighbours do not depend on each other."""
    program(
        STEPS
        + """
n = 200_000
for p in (0.1, 0.5, 0.9):
    x = torch.ones(n, device="npu", requires_grad=True)
    y = F.dropout(x, p)
    y.sum().backward()
    kept = y.detach().cpu() != 0
    assert abs(kept.double().mean() - (1 - p)) < 5 * (p * (1 - p) / n) ** 0.5
    both = (kept[1:] & kept[:-1]).double().mean()
    assert abs(both - (1 - p) ** 2) < 5 * (2 / n) ** 0.5
    assert (y.detach().cpu()[kept] == torch.tensor(1 / (1 - p))).all()
    assert x.grad.equal(y.detach())
"""
    )


def test_kernels_are_registered_once_and_taken_out_again(program: Program) -> None:
    program("""
first = bringup_sim_ops.load()
assert bringup_sim_ops.load() == first
assert set(first) == {operator.name for operator in bringup_sim_ops.OPERATORS}
x = torch.randn(3, device="npu")
def natives(call):
    devices.fallback_report(reset=True)
    call()
    report = devices.fallback_report()
    return len(report.native), len(report.rows)
assert natives(lambda: x + x) == (1, 0)
bringup_sim_ops.unload()
assert natives(lambda: x + x) == (0, 1)
assert not any(kernel.enabled for kernel in first.values())
bringup_sim_ops.load()
assert natives(lambda: x + x) == (1, 0)
""")


def test_without_a_driver_nothing_is_registered() -> None:
    said = output_of(
        BEGIN.replace('devices.load_driver("sim")', "")
        + """
from bringup.errors import DeviceError
try:
    bringup_sim_ops.load()
except DeviceError as error:
    print(error)
devices.load_driver("sim")
assert len(bringup_sim_ops.load()) == len(bringup_sim_ops.OPERATORS)
"""
    )
    assert "no driver is loaded" in said


def test_an_index_out_of_range_is_an_error_where_somebody_waits(program: Program) -> None:
    said = program("""
bringup_sim_ops.load()
table, index = torch.randn(4, 2, device="npu"), torch.tensor([1, 9], device="npu")
try:
    table.index_select(0, index).cpu()
except RuntimeError as error:
    print(error)
""")
    assert "aten::index_select" in said
    assert "index 9 is outside dimension 0 of size 4" in said


def test_factors_of_a_product_are_read_by_their_values(program: Program) -> None:
    """Integers and floating-point numbers, also integers whose bits are those of a small double."""
    program("""
bringup_sim_ops.load()
added, left, right = torch.ones(2, 3), torch.ones(2, 4), torch.ones(4, 3)
on_npu = [t.to("npu") for t in (added, left, right)]
for beta, alpha in ((2**53, 1), (-(2**60), 2**52), (True, 2.5), (0.5, -3), (0, 2**62)):
    expected = torch.addmm(added, left, right, beta=beta, alpha=alpha)
    assert torch.equal(torch.addmm(*on_npu, beta=beta, alpha=alpha).cpu(), expected)
    in_place = on_npu[0].clone().addmm_(*on_npu[1:], beta=beta, alpha=alpha)
    assert torch.equal(in_place.cpu(), expected)
""")
