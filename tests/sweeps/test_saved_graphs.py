"""Random programs that are captured, saved, and replayed in another process give eager's bits, and
so does every operator that torch has samples for.
"""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
from tests.forked_python import output_of_module
from tests.sweeps.saved_programs import save
from tests.sweeps.support import part
from tests.sweeps.test_captured_operators import Call, difference, outcome, samples
from torch.testing._internal import common_methods_invocations as torch_samples

from bringup import devices, graphs
from bringup.errors import CaptureError


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("first", part(range(20)))
def test_a_saved_graph_replays_in_another_process(first: int, device: str, tmp_path: Path) -> None:
    if device == "npu":
        devices.load_driver("sim")
    seeds = range(first * 10, first * 10 + 10)
    save(tmp_path, seeds, device)
    output_of_module("tests.sweeps.saved_programs", "sim", device, str(tmp_path), *map(str, seeds))


@pytest.mark.parametrize("first", part(range(20)))
def test_a_saved_operator_gives_what_eager_gives(
    first: int, tmp_path: Path, sweep_counts: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It seeds the generator inside the operator: this is done here, outside the capture.
    monkeypatch.setattr(torch_samples, "wrapper_set_seed", lambda op, *a, **k: op(*a, **k))
    wrong: list[str] = []
    for op in torch_samples.op_db[first::20]:
        for sample in samples(op):
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                found = _check(Call(op.op, sample), tmp_path / "o.bgraph", sweep_counts)
            if found:
                wrong.append(f"{op.name}.{op.variant_test_name}: {found[:600]}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)


def _check(call: Call, path: Path, counts: Counter[str]) -> str:
    """What is wrong with a saved graph of this call, or ""."""
    if outcome(call.seeded)[1] is not None:  # the sample itself does not work here
        return ""
    call.put_inputs_back()
    inputs = [tensor for tensor in call.tensors if tensor.layout == torch.strided]
    graph = graphs.CapturedGraph()
    torch.manual_seed(0)
    try:
        with graphs.capture(graph, inputs=inputs):
            graph.outputs = [one for one in call() if isinstance(one, torch.Tensor)]
    except CaptureError:  # as tests/sweeps/test_captured_operators.py says
        counts["not captured"] += 1
        return ""
    graphs.save(graph, path)
    loaded = graphs.load(path)
    call.change_inputs()
    expected, failure = outcome(call.seeded)
    call.put_inputs_back()
    for ours, theirs in zip(loaded.inputs.values(), inputs, strict=True):
        ours.copy_(theirs)
    torch.manual_seed(0)
    _, replay_failure = outcome(loaded.replay)
    if failure is not None or replay_failure is not None:
        said = f"eager on the new inputs: {failure}; the replay: {replay_failure}"
        return said if failure is None or replay_failure is None else ""
    counts["saved"] += 1
    tensors = [one for one in expected if isinstance(one, torch.Tensor)]
    return difference(loaded.outputs, tensors)
