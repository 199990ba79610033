"""A conformance run: what is counted, kept, resumed and compared with a baseline."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forked_python import output_of
from tests.unit.conformance.conftest import Register

from bringup import _native, conformance
from bringup.conformance import CaseResult, Conformance, _modules, _samples, _suite
from bringup.conformance._cases import case_ids, run_case
from bringup.conformance._opinfo import TORCHS_OWN
from bringup.errors import DriverError, ModelError

CRASHES = """
#include <bringup/driver.h>
#include <dlfcn.h>
#include <signal.h>
static bringup_driver table;
static int32_t crash(bringup_event start, bringup_event end, float* milliseconds) {
  raise(SIGSEGV);
  return BRINGUP_OK;
}
const bringup_driver* bringup_driver_get(uint32_t abi_version) {
  void* library = dlopen(SIM, RTLD_NOW);
  table = *((bringup_driver_get_fn)dlsym(library, "bringup_driver_get"))(abi_version);
  table.event_elapsed = crash;
  return &table;
}
"""

LOADS = """
from pathlib import Path
from typing import Any
from bringup import devices

def load():
    for name in ("exp", "mul"):
        source = Path(__file__).with_name(f"{name}.cpp")
        devices.kernel(f"aten::{name}", source=source, kind="pointwise")
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))


def ones(*outcomes: str) -> list[CaseResult]:
    return [
        CaseResult(f"op/{n}/float32", "pass" if o == "native" else o, native=o == "native")
        for n, o in enumerate(outcomes)
    ]


def test_torchs_lists_of_tests_are_imported_by_what_runs_them_alone() -> None:
    code = """
import sys
LISTS = ("common_methods_invocations", "common_modules", "common_optimizers")
from bringup import conformance
from bringup.conformance import _cases
print(_cases.run_case("runtime/copies_keep_bits_and_layouts", "cpu", 1).id)
print([name for name in sys.modules if name.endswith(LISTS)])
"""
    assert output_of(code).splitlines() == ["runtime/copies_keep_bits_and_layouts", "[]"]


def test_names_of_cases_are_all_different_and_stay() -> None:
    names = case_ids(1) + case_ids(2)
    assert len(set(names)) == len(names)
    known = {"runtime/stream_keeps_its_order", "op/add/float32", "op/linalg.svd/complex64"}
    assert known | {"module/nn_Linear-training", "optimizer/SGD-loop-default"} <= set(names)


@pytest.mark.parametrize("name", case_ids(1))
def test_the_simulator_keeps_every_promise_of_the_runtime(name: str) -> None:
    result = run_case(name, "npu", 1)
    assert result.reason == ""
    assert result.outcome == "pass"


def test_what_runs_on_the_host_is_counted_and_is_not_native() -> None:
    result = run_case("op/exp/float32", "npu", 3)
    assert (result.outcome, result.native, result.samples) == ("pass", False, 3)
    assert result.calls_on_host > 3
    assert result.calls == result.calls_on_host
    assert 0 < result.seconds_on_host == result.seconds


def test_an_operator_of_the_device_is_native() -> None:
    result = run_case("op/view_as/float32", "npu", 3)
    assert (result.outcome, result.native, result.calls_on_host) == ("pass", True, 0)


def test_a_wrong_number_fails_and_its_sample_is_named(device_kernel: Register) -> None:
    device_kernel("exp", lambda x: torch.ops.aten.exp(x) * 1.01)
    result = run_case("op/exp/float32", "npu", 2)
    assert result.outcome == "failed"
    assert result.reason.startswith("sample 0, forward: ")


@pytest.mark.parametrize(("error", "outcome"), [(0.0, "pass"), (1e-3, "failed")])
def test_who_is_nearer_to_float64_than_the_cpu_is_right(
    device_kernel: Register, error: float, outcome: str
) -> None:
    def nearer(grad: torch.Tensor, x: torch.Tensor, shape: Any, *others: Any) -> Any:
        *statistics, wanted = others
        wide = [one if one is None else one.double() for one in statistics]
        backward = torch.ops.aten.native_layer_norm_backward
        found = backward(grad.double(), x.double(), shape, *wide, wanted)
        return tuple(one if one is None else one.float() + error for one in found)

    device_kernel("native_layer_norm_backward", nearer)
    result = run_case("op/nn.functional.layer_norm/float32", "npu", 3)
    assert result.outcome == outcome, result.reason


def test_a_refusal_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from bringup import devices

    with devices.fallback_policy("allow", {"aten::exp": "forbid"}):
        result = run_case("op/exp/float32", "npu", 2)
    assert (result.outcome, result.native) == ("refused", False)
    assert "NotImplementedError" in result.reason


def test_a_refusal_is_no_pass_where_the_cpu_raises_another_error() -> None:
    refused, wrong = NotImplementedError("no dtype"), RuntimeError("bad shape")
    told = [
        _samples.describe_difference(None, ours, None, theirs, True, "npu")
        for ours in (refused, wrong)
        for theirs in (refused, wrong)
    ]
    assert told == ["", "NotImplementedError: no dtype", "", ""]


@pytest.mark.parametrize("name", ["pinverse", "linalg.lstsq"])
def test_what_is_compared_runs_without_the_mode_that_counts(name: str) -> None:
    """torch loses the conjugation of views in these while any mode is active, on the CPU, too."""
    assert run_case(f"op/{name}/complex64", "npu", 3).reason == ""


@pytest.mark.usefixtures("forked_workers")
def test_kernels_of_a_package_are_loaded_and_a_changed_one_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "vendor"
    package.mkdir()
    source, kernel = package / "__init__.py", package / "exp.cpp"
    kernel.write_text("#include <cmath>\ntemplate <class T> T exp(T x) { return std::exp(x); }")
    source.write_text(LOADS)
    product = "template <class T> T mul(T a, T b) { return a * b; }"
    package.joinpath("mul.cpp").write_text(product)  # of the gradient
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    run = partial(conformance.run_conformance, "sim", pattern="op/exp/float32", samples=2)
    (native,) = run(load="vendor:load").results
    assert (native.outcome, native.native) == ("pass", True)
    assert run(load="vendor:load", resume=True).resumed == 1
    assert run(resume=True).resumed == 0
    kernel.write_text(kernel.read_text().replace("std::exp(x)", "2 * std::exp(x)"))
    changed = run(load="vendor:load", resume=True)
    assert changed.resumed == 0
    assert [one.outcome for one in changed.results] == ["failed"]


@pytest.mark.parametrize(
    ("load", "told"),
    [
        ("json", "expected MODULE:FUNCTION"),
        ("there_is_none:load", "there is no module 'there_is_none'"),
    ],
)
def test_a_package_that_there_is_not_is_refused(load: str, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        conformance.run_conformance("sim", load=load, pattern="op/exp/float32")


@pytest.mark.usefixtures("forked_workers")
def test_a_package_that_cannot_be_loaded_says_why() -> None:
    with pytest.raises(DriverError, match=r"loading json:nothing: AttributeError: .*nothing"):
        conformance.run_conformance("sim", load="json:nothing", pattern="op/exp/float32")


def test_a_module_one_per_cent_wrong_fails_with_numbers_and_forms(
    device_kernel: Register,
) -> None:
    device_kernel("gelu", lambda x, approximate="none": torch.nn.functional.gelu(x) * 1.01)
    result = run_case("module/nn_GELU-training", "npu", 1)
    assert result.outcome == "failed"
    assert "error 0.01 of the largest value, allowed 0.0001" in result.reason
    given = ((torch.ones(2, 3),), {"mask": torch.ones(2, dtype=torch.bool)})
    assert _modules.forms(given) == "called with float32[2, 3], bool[2]"


def test_samples_that_torch_itself_refuses_are_named() -> None:
    result = run_case("op/tensor_split/float32", "npu", 3)
    assert result.outcome == "skipped"
    assert "indices_or_sections to be on cpu" in result.reason


def test_what_torch_does_otherwise_on_every_device_is_not_the_devices_fault() -> None:
    result = run_case("op/tensor_split/float32", "npu", 30)
    assert result.outcome == "pass"
    assert len([key for key in TORCHS_OWN if key[0] == "tensor_split"]) == 4


def test_an_operator_counts_once_and_is_native_where_all_its_dtypes_are() -> None:
    found = Conformance({})
    found.results = [
        CaseResult("op/a/float32", "pass", native=True, calls=4, seconds=2.0),
        CaseResult(
            "op/a/int64", "pass", calls=4, calls_on_host=4, seconds=2.0, seconds_on_host=1.0
        ),
        CaseResult("op/b/float32", "pass", native=True, calls=2, seconds=1.0),
        CaseResult("op/c/float32", "refused", calls=10, seconds=5.0),
        CaseResult("op/d/float32", "skipped"),
        CaseResult("runtime/x", "pass", native=True),
    ]
    assert found.operators() == conformance.Score(1, 2, 3)
    assert found.calls() == conformance.Score(6, 10, 20)
    assert found.seconds() == conformance.Score(4.0, 5.0, 10.0)
    assert found.cases() == conformance.Score(3, 4, 5)
    assert [one.id for one in found.not_passed] == ["op/c/float32"]


@pytest.mark.usefixtures("forked_workers")
def test_a_run_goes_through_the_levels_and_says_what_was_run() -> None:
    seen = []
    found = conformance.run_conformance(
        "sim",
        pattern="*/copies*",
        on_result=lambda result, done, of: seen.append((result.id, done, of)),
    )
    names = [one.id for one in found.results]
    assert names
    assert {name.partition("/")[0] for name in names} == {"driver", "runtime"}
    assert {one.outcome for one in found.results} <= {"pass", "skipped"}
    assert [done for _, done, _ in seen] == list(range(1, len(names) + 1))


@pytest.mark.usefixtures("forked_workers")
def test_a_run_can_be_a_slice_and_is_resumed() -> None:
    first = conformance.run_conformance("sim", pattern="runtime/tensors_*", every=3, level=1)
    assert [one.outcome for one in first.results] == ["pass", "pass"]
    assert first.facts["device"] == "npu"
    again = conformance.run_conformance("sim", pattern="runtime/tensors_*", level=1, resume=True)
    assert again.resumed == 2
    assert len(again.results) == 6
    assert {one.id for one in first.results} < {one.id for one in again.results}
    anew = conformance.run_conformance("sim", pattern="runtime/tensors_print*", level=1)
    assert anew.resumed == 0


@pytest.mark.usefixtures("forked_workers")
def test_a_run_with_other_settings_is_not_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    conformance.run_conformance("sim", pattern="op/exp/int64", samples=1)
    monkeypatch.setenv("BRINGUP_FALLBACK", "forbid")
    found = conformance.run_conformance("sim", pattern="op/exp/int64", samples=1, resume=True)
    assert found.resumed == 0
    assert [one.outcome for one in found.results] == ["refused"]


def test_a_crash_costs_one_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_DRIVER_PROBE", "0")
    source, library = tmp_path / "crashes.c", tmp_path / "libcrashes.so"
    source.write_text(CRASHES)
    command = [shutil.which("cc") or "gcc", "-shared", "-fPIC", f"-I{_native.include_dir()}"]
    command += [f'-DSIM="{_native.sim_driver_path()}"', str(source), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True)
    found = conformance.run_conformance(str(library), pattern="runtime/event_*", level=1)
    outcomes = {one.id.partition("/")[2]: one for one in found.results}
    crashed = outcomes.pop("event_times_are_numbers_that_grow")
    assert crashed.outcome == "crashed"
    assert "SIGSEGV" in crashed.reason
    assert {one.outcome for one in outcomes.values()} == {"pass"}


@pytest.mark.usefixtures("forked_workers")
def test_a_line_that_was_cut_short_is_run_again(tmp_path: Path) -> None:
    run = conformance.run_conformance
    run("sim", pattern="runtime/tensors_print*", level=1)
    (journal,) = (tmp_path / "cache" / "conformance").glob("*.jsonl")
    journal.write_text(journal.read_text()[:30])
    assert run("sim", pattern="runtime/tensors_print*", level=1, resume=True).resumed == 0


def test_what_is_worse_than_in_the_baseline_is_a_regression(tmp_path: Path) -> None:
    then = ones("native", "native", "pass", "refused", "failed", "skipped", "pass")
    file = tmp_path / "then.json"
    file.write_text(json.dumps({"results": [vars(one) for one in then]}))
    now = ones("native", "pass", "refused", "failed", "refused", "failed", "native")
    worse = _suite.regressions(now, conformance.read_baseline(file))
    assert worse == [
        ("op/1/float32", "native", "pass"),
        ("op/2/float32", "pass", "refused"),
        ("op/3/float32", "refused", "failed"),
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"results": [1]}'])
def test_a_baseline_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(ModelError, match=r"x\.json is no result of bringup conformance"):
        conformance.read_baseline(file)


def test_a_pattern_without_cases_a_level_and_a_driver_that_there_are_not_are_refused() -> None:
    with pytest.raises(ModelError, match="no case matches 'nothing/"):
        conformance.run_conformance("sim", pattern="nothing/*")
    with pytest.raises(ModelError, match="level 5"):
        conformance.run_conformance("sim", level=5)
    with pytest.raises(DriverError, match="there is no driver named 'none'"):
        conformance.run_conformance("none")


def test_families_are_the_first_parts_of_names() -> None:
    names = ["op/add/float32", "op/linalg.svd/float32", "op/nn.functional.gelu/int64"]
    found = conformance.families(
        [*(CaseResult(name, "pass") for name in names), CaseResult("runtime/x", "pass")]
    )
    assert set(found) == {"tensor", "linalg", "nn.functional"}
