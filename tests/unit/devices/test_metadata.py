"""Metadata that a package attaches to tensors: what keeps it, what drops it."""

from __future__ import annotations

import copy
import io
import pickle
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forked_python import output_of

from bringup import devices
from bringup.errors import DeviceError

GIVEN = {"format": 29, "version": "1.2", "packed": True, "blocks": [16, {"of": None}], "scale": 0.5}


@pytest.fixture
def x() -> torch.Tensor:
    made = torch.arange(24.0, device="npu").reshape(4, 6)
    devices.set_metadata(made, GIVEN)
    return made


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "select": lambda x: x[1],
    "slice": lambda x: x[1:, ::2],
    "transpose": lambda x: x.t(),
    "permute": lambda x: x.permute(1, 0),
    "view": lambda x: x.view(-1),
    "reshape": lambda x: x.reshape(2, 12),
    "flatten": lambda x: x.flatten(),
    "dtype": lambda x: x.view(torch.int32),
    "expand": lambda x: x[:, :1].expand(4, 3),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "squeeze": lambda x: x[:, :1].squeeze(),
    "diagonal": lambda x: x.diagonal(),
    "split": lambda x: x.split(2)[1],
    "unbind": lambda x: x.unbind(1)[3],
    "unfold": lambda x: x.unfold(1, 2, 2),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 3)),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(4, 3, 2)),
    "conj": lambda x: torch.view_as_complex(x.view(4, 3, 2)).conj(),
    "imag": lambda x: torch.view_as_complex(x.view(4, 3, 2)).imag,
    "alias": torch.ops.aten.alias,
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "parameter": torch.nn.Parameter,
    "shallow copy": copy.copy,
}
COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clone": lambda x: x.clone(),
    "clone of another layout": lambda x: x.t().clone(memory_format=torch.contiguous_format),
    "contiguous": lambda x: x.t().contiguous(),
    "reshape": lambda x: x.t().reshape(-1),
    "device": lambda x: x.to("npu:1"),
    "dtype": lambda x: x.half(),
    "both": lambda x: x.to("npu:1", torch.int64),
    "without waiting": lambda x: x.to("npu:1", non_blocking=True),
    "copy": lambda x: x.to("npu", copy=True),
    "deepcopy": copy.deepcopy,
    "deepcopy of a parameter": lambda x: copy.deepcopy(torch.nn.Parameter(x)),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_have_it(x: torch.Tensor, name: str) -> None:
    for source in (x, x.clone().requires_grad_()):
        seen = VIEWS[name](source)
        assert devices.metadata(seen) == GIVEN
        assert seen.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()


@pytest.mark.parametrize("name", COPIES)
def test_copies_on_the_device_have_it(x: torch.Tensor, name: str) -> None:
    for source in (x, x.clone().requires_grad_()) if name != "deepcopy" else (x,):
        copied = COPIES[name](source)
        assert devices.metadata(copied) == GIVEN
        assert copied.untyped_storage().data_ptr() != source.untyped_storage().data_ptr()
        assert copied.numel() == 24


def test_results_of_operators_and_copies_elsewhere_have_none(x: torch.Tensor) -> None:
    others = (x + 1, x.sum(), torch.cat([x, x]), torch.empty_like(x), x.new_empty(2), x.cpu())
    assert [devices.metadata(other) for other in (*others, x.cpu().to("npu"))] == [{}] * 7


def test_writes_leave_it_to_the_tensor_that_is_written(x: torch.Tensor) -> None:
    plain = torch.zeros(4, 6, device="npu")
    assert devices.metadata(plain.copy_(x)) == {}
    assert devices.metadata(x.add_(1).copy_(plain)) == GIVEN
    assert torch.equal(x, plain)


def test_it_belongs_to_the_tensor_and_is_taken_as_it_is_then(x: torch.Tensor) -> None:
    earlier = x.view(-1)
    devices.set_metadata(x, {"format": 1})
    assert devices.metadata(earlier) == GIVEN
    assert devices.metadata(x.view(-1)) == devices.metadata(x) == {"format": 1}
    devices.metadata(x)["format"] = 2  # a new dictionary each time
    assert devices.metadata(x) == {"format": 1}
    devices.set_metadata(x, {})
    assert devices.metadata(x) == devices.metadata(x.view(-1)) == {}
    devices.set_metadata(x, {})


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("weights_only", [True, False])
def test_files_keep_it(x: torch.Tensor, zipped: bool, weights_only: bool) -> None:
    complexes = torch.view_as_complex(x.clone().view(4, 3, 2))
    given = {"x": x, "row": x[1:], "conjugate": complexes.conj(), "plain": x + 1}
    buffer = io.BytesIO()
    torch.save(given, buffer, _use_new_zipfile_serialization=zipped)

    def loaded(where: str | None) -> dict[str, torch.Tensor]:
        buffer.seek(0)
        found: dict[str, torch.Tensor] = torch.load(
            buffer, map_location=where, weights_only=weights_only
        )
        return found

    for where in (None, "npu:1"):
        back = loaded(where)
        assert [devices.metadata(back[name]) for name in given] == [GIVEN, GIVEN, GIVEN, {}]
        assert back["conjugate"].is_conj()
        assert torch.equal(back["x"].cpu(), x.cpu())
    assert all(devices.metadata(found) == {} for found in loaded("cpu").values())


def test_modules_keep_it_in_state_files_and_copies() -> None:
    model = torch.nn.Linear(4, 2).to("npu")
    devices.set_metadata(model.weight, GIVEN)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer)
    assert devices.metadata(state["weight"]) == devices.metadata(copy.deepcopy(model).weight)
    other = torch.nn.Linear(4, 2, device="npu")
    other.load_state_dict(state)  # writes
    assert devices.metadata(other.weight) == {}
    other.load_state_dict(state, assign=True)
    assert devices.metadata(other.weight) == devices.metadata(model.to("npu:1").weight) == GIVEN


def test_a_process_that_only_loads_has_it(x: torch.Tensor, tmp_path: Path) -> None:
    torch.save(x, tmp_path / "x.pt")
    code = """
import sys, torch
from bringup import devices
devices.load_driver("sim")
print(devices.metadata(torch.load(sys.argv[1]))["version"])
"""
    assert output_of(code, str(tmp_path / "x.pt")) == "1.2"


def test_a_library_with_metadata_of_its_own_has_it_kept_and_saved(tmp_path: Path) -> None:
    torch_folder = Path(torch.__file__).parent
    source, library = Path(__file__).with_name("drivers") / "marks.cpp", tmp_path / "marks.so"
    command = [shutil.which("c++") or "g++", "-std=c++20", "-O0", "-shared", "-fPIC", str(source)]
    command += [f"-I{torch_folder / 'include'}", f"-L{torch_folder / 'lib'}", "-lc10"]
    subprocess.run([*command, "-ltorch_cpu", "-o", str(library)], check=True, capture_output=True)
    code = """
import ctypes, io, sys, torch
from bringup import devices
library = ctypes.CDLL(sys.argv[1])
library.mark.argtypes, library.marked.argtypes = [ctypes.c_void_p, ctypes.c_int], [ctypes.c_void_p]
library.save_marks()
devices.load_driver("sim")
x, y = torch.ones(3, 4, device="npu"), torch.ones(2, device="npu")
library.mark(x._cdata, 29)
devices.set_metadata(y, {"of": "y"})
buffer = io.BytesIO()
torch.save([x, y], buffer)
buffer.seek(0)
loaded = torch.load(buffer)
for tensor in (x, x[1], x.clone(), x.to("npu:1"), loaded[0], loaded[1], x.cpu(), x + 1):
    print(library.marked(tensor._cdata), devices.metadata(tensor))
try:
    devices.set_metadata(x, {})
except Exception as error:
    print(type(error).__name__, error)
"""
    *said, refused = output_of(code, str(library)).splitlines()
    assert said == [*["29 {}"] * 5, "0 {'of': 'y'}", "0 {}", "0 {}"]
    assert refused.startswith(
        "DeviceError devices.set_metadata: the tensor has metadata of another"
    )


def test_gradients_have_none_and_autograd_keeps_that_of_leaves(x: torch.Tensor) -> None:
    leaf = x.requires_grad_()
    (leaf.view(-1)[1:] * leaf.detach().view(-1)[1:]).sum().backward()
    assert leaf.grad is not None
    assert devices.metadata(leaf) == GIVEN
    assert devices.metadata(leaf.grad) == {}


def test_threads_see_whole_metadata(x: torch.Tensor) -> None:
    wrong: list[object] = []
    written = [{"number": n, "text": str(n) * 100} for n in range(2)]

    def read() -> None:
        for _ in range(200):
            seen = devices.metadata(x.view(-1).clone())
            if seen not in (GIVEN, *written):
                wrong.append(seen)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for values in written:
            devices.set_metadata(x, values)
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1], "expected a mapping of names, got list"),
        ({1: 2}, "JSON has {'1': 2} for {1: 2}"),
        ({"shape": (1, 2)}, "JSON has {'shape': [1, 2]}"),
        ({"x": torch.float32}, "is no JSON: Object of type dtype"),
    ],
)
def test_what_is_no_metadata_is_refused_and_changes_nothing(
    x: torch.Tensor, values: Any, words: str
) -> None:
    with pytest.raises(TypeError) as raised:
        devices.set_metadata(x, values)
    assert words in str(raised.value)
    assert devices.metadata(x) == GIVEN


def test_a_tensor_elsewhere_is_refused() -> None:
    with pytest.raises(DeviceError, match="the tensor is on cpu: expected one on npu"):
        devices.set_metadata(torch.ones(2), GIVEN)
    assert devices.metadata(torch.ones(2)) == {}
