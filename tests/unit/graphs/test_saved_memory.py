"""The memory of saved graphs: content, weights of modules, what replays write, and its limits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.graphs.test_save import document_of, everything, file, rewritten, saved

from bringup import graphs
from bringup._container import read as read_sections
from bringup.errors import BundleError, CaptureError
from bringup.graphs._saved_values import KIND, VERSIONS

__all__ = ["file"]


def test_replays_move_the_versions_of_what_they_write(tmp_path: Path) -> None:
    state, weight = torch.zeros(3), torch.ones(3)

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * weight, state.add_(x)]

    loaded = graphs.load(saved(tmp_path / "v.bgraph", program, torch.ones(3)))
    tensors = [*loaded.inputs.values(), *loaded.outputs]
    before = [tensor._version for tensor in tensors]
    loaded.replay()
    moved = [tensor._version > former for tensor, former in zip(tensors, before, strict=True)]
    assert moved == [False, True, True]


def test_storages_that_overlap_stay_one_memory(tmp_path: Path) -> None:
    base, x = np.arange(12, dtype=np.float32), torch.ones(8)
    first, second = torch.from_numpy(base[:8]), torch.from_numpy(base[4:])

    def program(x: torch.Tensor) -> torch.Tensor:
        return first * x + second

    path = saved(tmp_path / "o.bgraph", program, x)
    assert any(place[1] == 16 for place, *_ in document_of(path)["tensors"])
    assert torch.equal(graphs.load(path).run(x), program(x))


def test_results_outlive_the_graph(file: Path) -> None:
    graph = graphs.load(file)
    graph.replay()
    y = graph.outputs["y"]
    expected = y.clone()
    del graph
    assert torch.equal(y, expected)


def test_a_file_is_not_written_by_replays_of_it(tmp_path: Path) -> None:
    state = torch.zeros(4)
    path = saved(tmp_path / "s.bgraph", lambda x: state.add_(x).clone(), torch.ones(4))
    content = path.read_bytes()
    first, second = graphs.load(path), graphs.load(path)
    for expected in (1, 2, 3):
        assert first.run(torch.ones(4)).tolist() == [expected] * 4
    assert second.run(torch.ones(4)).tolist() == [1] * 4
    assert path.read_bytes() == content


def test_weights_of_modules_are_taken_by_name(tmp_path: Path) -> None:
    model, x = torch.nn.Linear(64, 64), torch.randn(2, 64)
    graph, path = graphs.CapturedGraph(), tmp_path / "m.bgraph"
    with graphs.capture(graph):
        model(x)
    graphs.save(graph, path, modules={"model": model})
    assert path.stat().st_size < 64 * 64 * 4
    other = torch.nn.Linear(64, 64)
    loaded = graphs.load(path, modules={"model": other})
    assert torch.equal(loaded.run(x), other(x))
    other.weight.data.mul_(2)
    assert torch.equal(loaded.run(input=x), other(x))
    other.weight = torch.nn.Parameter(torch.zeros(64, 64))
    with pytest.raises(CaptureError, match="parameter 'weight' of Linear"):
        loaded.run(x)
    with pytest.raises(BundleError, match=r"has not the weights of 'model': give load\("):
        graphs.load(path)
    with pytest.raises(BundleError, match=r"takes 'weight' of modules\['model'\] as float32"):
        graphs.load(path, modules={"model": torch.nn.Linear(63, 64)})
    with pytest.raises(
        BundleError, match=r"takes '(weight|bias)' of modules\['model'\], which is not"
    ):
        graphs.load(path, modules={"model": torch.nn.ReLU()})
    with pytest.raises(BundleError, match=r"takes nothing of modules\['another'\]"):
        graphs.load(path, modules={"model": other, "another": model})
    with pytest.raises(CaptureError, match=r"reads no parameter or buffer of modules\['another'\]"):
        graphs.save(graph, path, modules={"another": torch.nn.Linear(2, 2)})


class Two(torch.nn.Module):
    """Two weights of one shape: in one storage in this order, or one for both names."""

    def __init__(self, first: str, second: str, *, tied: bool = False) -> None:
        super().__init__()
        flat = torch.randn(8, 4)
        for name, weight in ((first, flat[:4]), (second, flat[4:])):
            weight = flat[:4].clone() if tied and name == first else weight
            setattr(self, name, self.a if tied and name == second else torch.nn.Parameter(weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.a + x @ self.b * 2


def test_names_of_weights_stay_with_their_memory(tmp_path: Path) -> None:
    """Tied weights are so in what `load` is given; parts of one storage are no module's."""
    path, x = tmp_path / "m.bgraph", torch.randn(2, 4)
    graph, model = graphs.CapturedGraph(), Two("a", "b")
    with torch.no_grad(), graphs.capture(graph):
        model(x)
    with pytest.raises(CaptureError, match=r"reads no parameter or buffer of modules\['m'\]"):
        graphs.save(graph, path, modules={"m": model})
    graphs.save(graph, path)
    with torch.no_grad():
        expected = model(x)
    assert torch.equal(graphs.load(path).run(x), expected)
    graph, model = graphs.CapturedGraph(), Two("a", "b", tied=True)
    with torch.no_grad(), graphs.capture(graph):
        model(x)
    graphs.save(graph, path, modules={"m": model})
    other = Two("a", "b", tied=True)
    with torch.no_grad():
        assert torch.equal(graphs.load(path, modules={"m": other}).run(x), other(x))
    other.b = torch.nn.Parameter(other.a.detach().clone())
    with pytest.raises(BundleError, match="takes 'a' and 'b' as one tensor, and they are several"):
        graphs.load(path, modules={"m": other})


def test_weights_are_readable_as_safetensors(file: Path, tmp_path: Path) -> None:
    load = pytest.importorskip("safetensors.torch").load
    weights, rows, lazy = torch.randn(5, 3), torch.randn(2, 3), torch.randn(3, dtype=torch.cfloat)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x @ weights + rows[1] + lazy.conj()

    path = saved(tmp_path / "w.bgraph", program, torch.ones(2, 5))
    section = read_sections(path, KIND, everything(path), VERSIONS)["weights"]
    found = list(load(bytes(section)).values())
    assert any(torch.equal(one, weights) for one in found)
    for other in (rows, lazy):  # of which nothing is all that the format knows
        assert any(bytes(one.untyped_storage()) == bytes(other.untyped_storage()) for one in found)


def test_weights_of_another_size_are_refused(file: Path, tmp_path: Path) -> None:
    document = document_of(file)
    next(row for row in document["memories"] if "weights" in row)["size"] -= 4
    rewritten(file, tmp_path / "w.bgraph", document)
    with pytest.raises(BundleError, match=r"the weights '\d+' are not where they should be$"):
        graphs.load(tmp_path / "w.bgraph")


def test_memory_beyond_the_machine_is_refused_before_it_is_taken(
    file: Path, tmp_path: Path
) -> None:
    document = document_of(file)
    document["memories"][0]["size"] = 1 << 60
    rewritten(file, tmp_path / "bomb.bgraph", document)
    with pytest.raises(BundleError, match=r"wants \d{19} bytes of memory, and this machine has"):
        graphs.load(tmp_path / "bomb.bgraph")
