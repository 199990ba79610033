"""Native programs: what they compute is what the graph computes through Python."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from bringup import _native
from bringup.compiler import native_program as native_program_module
from bringup.compiler.native_program import native_program, run_eagerly

aten = torch.ops.aten


def traced(function: Callable[..., Any], *inputs: Any, symbolic: bool = False) -> fx.GraphModule:
    module: fx.GraphModule = make_fx(function, tracing_mode="symbolic" if symbolic else "real")(
        *inputs
    )
    (output,) = module.graph.find_nodes(op="output")
    if not isinstance(output.args[0], (tuple, list)):
        output.args = ((output.args[0],),)
        module.recompile()
    return module


def assert_program_computes(module: fx.GraphModule, *inputs: Any) -> Any:
    run = native_program(module)
    assert run is not None, "it has steps that a program has not"
    results = run(list(inputs))
    torch.testing.assert_close(list(results), list(module(*inputs)))
    return results


def with_lists(x: Tensor) -> tuple[Tensor, ...]:
    first, second = x.split([2, 3])
    values, places = x.max(0)
    return torch.cat([second, first]), values, places, x[torch.tensor([1, 0]), :, None]


def with_numbers(x: Tensor) -> tuple[Tensor, ...]:
    return x + 1, 2 - x, x * 2.5, x.to(torch.float64), torch.add(x, x, alpha=3), x > 0


def with_options(x: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.zeros(2, 3, dtype=torch.int32, device="cpu"),
        x.clone(memory_format=torch.contiguous_format),
        torch.nn.functional.gelu(x, approximate="tanh"),
        torch.arange(0, 5, 2),
        x.sum((0, 1), keepdim=True),
        x.clamp(min=0.5),
    )


@pytest.mark.parametrize("function", [with_lists, with_numbers, with_options])
def test_results_are_those_of_the_graph(function: Callable[..., Any]) -> None:
    x = torch.randn(5, 4)
    assert_program_computes(traced(function, x), x)


def test_numbers_do_not_decide_the_dtype_of_a_result() -> None:
    x = torch.ones(3, dtype=torch.float16)
    (half,) = assert_program_computes(traced(lambda t: t * 2.5, x), x)
    (whole,) = assert_program_computes(traced(lambda t: t + 1, x.int()), x.int())
    assert (half.dtype, whole.dtype) == (torch.float16, torch.int32)


def test_sizes_that_only_the_run_tells_are_computed() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        rows, columns = x.shape
        flat = x.reshape(rows * columns)
        return flat, x + rows, x * (columns / 2), y.expand(columns // 2 + 1, 3), x.new_zeros(rows)

    module = traced(function, torch.randn(5, 4), torch.randn(3), symbolic=True)
    for shape in ((5, 4), (2, 9)):
        assert_program_computes(module, torch.randn(shape), torch.randn(3))


def test_number_given_as_an_input_is_an_operand_of_tensors_lists_and_floats() -> None:
    graph = fx.Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    total = graph.call_function(aten.add.Tensor, (x, n))
    scaled = graph.call_function(aten.leaky_relu.default, (total, n))
    norm = graph.call_function(aten.layer_norm.default, (x, [n], None, None, n))
    graph.output((total, scaled, norm, n, None, 7))
    module = fx.GraphModule(torch.nn.Module(), graph)
    results = assert_program_computes(module, torch.randn(2, 3), 3)
    assert results[3:] == (3, None, 7)


def test_operator_that_writes_writes_the_tensor_of_the_caller() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    written = graph.call_function(aten.add_.Tensor, (x, 1))
    graph.output((written,))
    run = native_program(fx.GraphModule(torch.nn.Module(), graph))
    assert run is not None
    given = torch.zeros(3)
    before = given._version
    (result,) = run([given])
    assert result is given
    assert given.tolist() == [1, 1, 1]
    assert given._version == before + 1


def test_operators_written_in_python_and_dispatch_modes_take_part() -> None:
    @torch.library.custom_op("program::doubled", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.program.doubled.default, (x,)),))
    run = native_program(fx.GraphModule(torch.nn.Module(), graph))
    assert run is not None
    given = torch.ones(2)
    with Watch():
        (result,) = run([given])
    assert result.tolist() == [2, 2]
    assert seen[0] == "program.doubled.default"


def test_tensor_is_freed_behind_the_last_step_that_reads_it() -> None:
    alive: list[bool] = []

    @torch.library.custom_op("program::look", mutates_args=())
    def look(x: Tensor) -> Tensor:
        gc.collect()
        alive.append(given() is not None)
        return x.clone()

    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(torch.ops.program.look.default, (x,))
    total = graph.call_function(aten.add.Tensor, (first, x))
    graph.output((graph.call_function(torch.ops.program.look.default, (total,)),))
    run = native_program(fx.GraphModule(torch.nn.Module(), graph))
    assert run is not None
    tensor = torch.ones(2)
    given = weakref.ref(tensor)
    arguments = [tensor]
    del tensor
    run(arguments)
    assert (arguments, alive) == ([], [True, False])


def test_error_of_an_operator_reaches_the_caller_and_the_next_call_runs() -> None:
    module = traced(lambda x, y: x @ y, torch.ones(2, 3), torch.ones(3, 2))
    run = native_program(module)
    assert run is not None
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        run([torch.ones(2, 3), torch.ones(2, 3)])
    assert run([torch.ones(2, 3), torch.ones(3, 2)])[0].tolist() == [[3, 3], [3, 3]]


def test_warning_of_an_operator_is_one_of_python() -> None:
    places, values = torch.arange(5.0), torch.randn(4, 2).t()
    module = traced(torch.searchsorted, places, values)
    run = native_program(module)
    assert run is not None
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with pytest.warns(UserWarning, match="non-contiguous"):
            run([places, values])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="non-contiguous"):
                run([places, values])
    finally:
        torch.set_warn_always(always)


@pytest.fixture(name="reading")
def _reading() -> Iterator[Any]:
    """An operator in Python that reads a number on the host, and refuses 3."""
    with torch.library._scoped_library("bringup_test_program", "DEF") as library:
        library.define("reading(Tensor x) -> Tensor")

        def reading(x: torch.Tensor) -> torch.Tensor:
            if x.tolist()[0] == 3:
                raise KeyError("three")
            return x + 1

        library.impl("reading", reading, "CompositeExplicitAutograd")
        library._register_fake("reading", lambda x: torch.empty_like(x))
        yield torch.ops.bringup_test_program.reading.default


def test_error_of_an_operator_in_python_is_the_one_it_raised(reading: Any) -> None:
    run = native_program(traced(reading, torch.ones(2)))
    assert run is not None
    with pytest.raises(KeyError, match="three"):
        run([torch.full((2,), 3.0)])


def test_model_with_an_operator_that_reads_on_the_host_runs_without_a_capture(
    reading: Any, caplog: pytest.LogCaptureFixture
) -> None:
    serve = torch.compile(lambda x: reading(x) * 2, backend="bringup", options={"mode": "serve"})
    with torch.no_grad(), caplog.at_level("INFO", logger="bringup"):
        assert serve(torch.ones(2)).tolist() == [4, 4]
        assert serve(torch.zeros(2)).tolist() == [2, 2]
    assert "x.tolist()" in caplog.text


def test_wrong_inputs_are_refused() -> None:
    run = native_program(traced(torch.relu, torch.ones(2)))
    assert run is not None
    with pytest.raises(TypeError, match=r"takes tensors and numbers, got <class 'str'>"):
        run(["x"])
    with pytest.raises(RuntimeError, match="a compiled graph with 1 inputs was given 2"):
        run([torch.ones(2), torch.ones(2)])


def test_threads_run_one_program_at_once() -> None:
    run = native_program(traced(lambda x: (x + 1) * x - x.sum(), torch.ones(100)))
    assert run is not None
    wrong: list[float] = []

    def work(number: float) -> None:
        x = torch.full((100,), number)
        for _ in range(200):
            (result,) = run([x])
            if not torch.equal(result, (x + 1) * x - x.sum()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(float(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("why", ["no native library", "a method is called"])
def test_other_graphs_run_through_python(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    if why == "no native library":
        monkeypatch.setattr(native_program_module, "has_torch_library", lambda: False)
        assert _native.has_torch_library(), "there is one"
        result = graph.call_function(aten.relu.default, (x,))
    else:
        result = graph.call_method("relu", (x,))
    graph.output((result,))
    module = fx.GraphModule(torch.nn.Module(), graph)
    assert native_program(module) is None
    assert run_eagerly(module, [])([torch.tensor([-1.0, 2.0])])[0].tolist() == [0, 2]


def test_subgraphs_and_results_as_a_whole_run_through_python() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    both = graph.call_function(aten.max.dim, (x, 0))
    graph.output((graph.call_function(len, (both,)),))
    assert native_program(fx.GraphModule(torch.nn.Module(), graph)) is None
    graph = fx.Graph()
    graph.get_attr("inner")
    graph.output(())
    assert native_program(fx.GraphModule({"inner": torch.nn.Identity()}, graph)) is None


def test_error_of_an_operator_that_a_pass_put_there_names_the_pass() -> None:
    module = traced(lambda a, b: torch.mm(a, b), torch.ones(2, 3), torch.ones(3, 2))
    (product,) = module.graph.find_nodes(op="call_function", target=aten.mm.default)
    product.meta["bringup"] = {"rule": "FuseMine"}
    run = native_program(module)
    assert run is not None
    blamed = r"(?s)cannot be multiplied.*pass 'FuseMine' put aten::mm into the graph"
    with pytest.raises(RuntimeError, match=blamed):
        run([torch.ones(2, 3), torch.ones(4, 2)])
    assert run([torch.ones(1, 3), torch.ones(3, 1)])[0].item() == 3
