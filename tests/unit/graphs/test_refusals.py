"""What a capture refuses, and that every refusal says what, where and what to do."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.graphs.support import captured

from bringup import graphs
from bringup.errors import CaptureError
from bringup.graphs._patched_function import attribute_replaced

Action = Callable[[torch.Tensor], Any]


def as_condition(x: torch.Tensor) -> torch.Tensor:
    if (x > 0).all():
        return x * 2
    return x


def in_several_lines(x: torch.Tensor) -> float:
    # fmt: off
    return float(
        x.sum()
    )
    # fmt: on


HOST_READS: dict[str, tuple[Action, str]] = {
    "item": (lambda x: (x * 2).sum().item(), "`(x * 2).sum().item()`"),
    "bool": (lambda x: bool(x.any()), "`bool(x.any())`"),
    "condition": (as_condition, "`bool((x > 0).all())`"),
    "not": (lambda x: not x.any(), "`not x.any()`"),
    "float": (lambda x: float(x[0, 0]), "`float(x[0, 0])`"),
    "several lines": (in_several_lines, "`float( x.sum() )`"),
    "tolist": (lambda x: x.tolist(), "`x.tolist()`"),
    "numpy": (lambda x: (x + 1).numpy(), "`(x + 1).numpy()`"),
    "equal": (lambda x: torch.equal(x, x * 1), "`torch.equal(x, x * 1)`"),
    "index": (lambda x: [1, 2, 3][x.long().sum()], "`[1, 2, 3][x.long().sum()]`"),
}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not know columns")
@pytest.mark.parametrize("name", HOST_READS)
def test_reading_a_value_on_the_host_names_what_the_user_wrote(name: str) -> None:
    action, written = HOST_READS[name]
    with pytest.raises(CaptureError) as caught:
        captured(action, torch.ones(2, 2))
    assert str(caught.value).startswith(f"{written} reads the value of a tensor ")
    assert "a replay would not see a new value" in str(caught.value)
    assert "test_refusals.py:" in str(caught.value)


def test_reading_a_value_where_there_is_no_source_names_what_does_that() -> None:
    action = eval(compile("lambda x: x.sum().item()", "<made up>", "eval"))
    with pytest.raises(CaptureError) as caught:
        captured(action, torch.ones(2, 2))
    text = str(caught.value)
    assert text.startswith("item(), bool(), int() or float() of a tensor reads the value of a")
    assert "<made up>:1 in <lambda>" in text


@pytest.mark.parametrize("name", ["tolist", "numpy"])
def test_anothers_patch_of_a_tensor_method_survives_a_capture(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    original = getattr(torch.Tensor, name)

    def theirs(self: torch.Tensor) -> Any:
        return "theirs", original(self)

    monkeypatch.setattr(torch.Tensor, name, theirs)
    captured(lambda: torch.ones(2) + 1)
    assert vars(torch.Tensor)[name] is theirs
    with graphs.capture(graphs.CapturedGraph()):
        torch.ones(2).add_(1)
        during = vars(torch.Tensor)[name]
        monkeypatch.setattr(torch.Tensor, name, theirs)  # patched on top, while we are at it
    assert vars(torch.Tensor)[name] is theirs
    assert during(torch.ones(1))[0] == "theirs"  # ours, called outside a capture
    monkeypatch.undo()
    assert name not in vars(torch.Tensor)


@pytest.mark.parametrize("is_own", [True, False])
def test_captures_that_overlap_leave_no_layer_of_patches(is_own: bool) -> None:
    """As two threads do: the first to begin ends first, with the other's patch on top of its."""

    class Base:
        def read(self) -> str:
            return "base"

    class Owner(Base):
        pass

    if is_own:
        Owner.read = lambda self: "own"  # type: ignore[method-assign]
    before = vars(Owner).get("read")
    patches = [
        attribute_replaced(Owner, "read", lambda inner: lambda self: inner(self) + "!")
        for _ in range(3)
    ]
    for patch in patches:
        patch.__enter__()
    assert Owner().read() == ("own!!!" if is_own else "base!!!")
    for patch in patches:
        patch.__exit__(None, None, None)
    assert vars(Owner).get("read") is before


@pytest.mark.parametrize(
    ("action", "op"),
    [
        (lambda x: x.nonzero(), "aten::nonzero"),
        (lambda x: x[x > 0], "aten::index.Tensor"),
        (lambda x: torch.masked_select(x, x > 0), "aten::masked_select"),
    ],
)
def test_shape_that_depends_on_data_is_refused(action: Action, op: str) -> None:
    with pytest.raises(CaptureError, match=f"{op} gives a result whose shape depends on data"):
        captured(action, torch.ones(2, 2))


def test_recording_a_gradient_is_refused_where_none_is_wanted() -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    with (
        torch.enable_grad(),
        pytest.raises(
            CaptureError,
            match=r"aten::mm would record a gradient for its result float32\[2, 2\].*no_grad",
        ),
        graphs.capture(graphs.CapturedGraph(), gradients=False),
    ):
        weight @ weight


def test_sparse_tensors_are_refused() -> None:
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(CaptureError, match=r"takes a tensor of layout Sparse .*only strided"):
        captured(lambda: torch.sparse.mm(sparse, torch.ones(3, 3)))


def test_sparse_result_is_refused_by_operator_and_layout() -> None:
    with pytest.raises(CaptureError) as refused:
        captured(lambda: torch.eye(3).to_sparse())
    assert str(refused.value).startswith(
        "aten::_to_sparse gives a tensor of layout Sparse: only strided tensors have the fixed"
        " memory that a captured graph needs\n  at "
    )


def test_growing_a_tensor_with_content_is_refused_and_changes_nothing() -> None:
    x = torch.ones(4)
    with pytest.raises(CaptureError) as refused:
        captured(lambda: (x * 2).resize_(8))
    assert str(refused.value).startswith(
        "aten::resize_ makes float32[4] larger: a replay would not bring its content to the new"
        " memory. Make it as large as it will be when it is made\n  at "
    )
    with pytest.raises(CaptureError) as refused:
        captured(lambda: x.resize_as_(torch.ones(3, 3)).fill_(1))
    assert str(refused.value).startswith(
        "aten::resize_as_ makes float32[4], which predates the capture, larger: a replay would not"
        " bring its content to the new memory. Make it as large as it will be before the capture"
    )
    assert x.tolist() == [1, 1, 1, 1]


def test_blank_memory_that_is_read_is_refused_as_never_filled() -> None:
    with pytest.raises(CaptureError) as refused:
        captured(lambda: torch.empty(0).resize_(4) + 1)
    assert str(refused.value).startswith(
        "aten::add.Tensor reads a tensor float32[4] that no captured operator wrote. It was made by"
        " torch.empty or one of its kind, and nothing in the capture filled it\n  at "
    )


def test_capture_without_work_warns_once_and_replays_nothing() -> None:
    x = torch.ones(3)
    with pytest.warns(UserWarning, match="captured graph is empty") as told:
        graph, view = captured(lambda: x.view(1, 3))
    assert len(told) == 1
    x.fill_(2)
    graph.replay()
    assert graph.nodes == ()
    assert view.tolist() == [[2, 2, 2]]
    assert (graph.memory_bytes, graph.to_dot().count("->")) == (0, 0)
    graph.reset()
    with graphs.capture(graph):
        y = x + 1
    assert y.tolist() == [3, 3, 3]


def test_result_that_nothing_fills_is_refused_with_its_shape() -> None:
    def leaves_one_empty() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(2) + 1, torch.empty(5, 7, dtype=torch.float64)

    with pytest.raises(
        CaptureError, match=r"no captured operator writes this result.*float64\[5, 7\]"
    ):
        captured(leaves_one_empty)


def write_unseen(tensor: torch.Tensor) -> torch.Tensor:
    """Writes memory behind the dispatcher's back, as a generated kernel does."""
    import ctypes

    ctypes.memset(tensor.data_ptr(), 0, tensor.nbytes)
    return tensor


def test_tensor_that_unseen_code_made_is_refused_where_it_is_read() -> None:
    def model() -> torch.Tensor:
        return torch.relu(write_unseen(torch.empty(2, 3)))

    with pytest.raises(CaptureError) as caught:
        captured(model)
    text = str(caught.value)
    assert text.startswith(
        "aten::relu reads a tensor float32[2, 3] that no captured operator wrote"
    )
    assert "in model" in text


def test_result_that_unseen_code_changed_is_refused() -> None:
    x = torch.ones(4)
    with pytest.raises(
        CaptureError,
        match=r"does not give what the run gave: the result of aten::add.Tensor \(16 b",
    ):
        captured(lambda: write_unseen(x + 1))


def test_declared_constant_may_come_from_unseen_code() -> None:
    x = torch.ones(2, 3)
    graph, output = captured(lambda: x + graphs.constant(write_unseen(torch.empty(2, 3))))
    x.fill_(5)
    graph.replay()
    assert torch.equal(output, x)
    assert graphs.constant(x) is x


def test_literals_keep_their_values_though_memory_is_reused() -> None:
    x = torch.zeros(3)

    def model() -> tuple[torch.Tensor, torch.Tensor]:
        for n in range(4):
            x.add_(torch.tensor([1.0, 2.0, 3.0]) * n)
        counter = torch.tensor([10.0])
        counter += 1
        return torch.tensor([4.0, 5.0]), counter

    graph, (literal, counter) = captured(model)
    for _ in range(3):
        graph.replay()
    assert literal.tolist() == [4.0, 5.0]
    assert counter.tolist() == [11.0]
    assert x.tolist() == [18.0, 36.0, 54.0]


def test_nested_capture_is_refused() -> None:
    with (
        pytest.raises(CaptureError, match="a capture cannot start inside another one"),
        graphs.capture(graphs.CapturedGraph()),
    ):
        captured(lambda: torch.ones(2) + 1)
    captured(lambda: torch.ones(2) + 1)


def test_leaving_a_capture_on_another_thread_is_refused_and_it_goes_on() -> None:
    x = torch.ones(2)
    graph = graphs.CapturedGraph()
    capture = graphs.capture(graph)
    refusals: list[str] = []

    def leave() -> None:
        with pytest.raises(CaptureError) as refused:
            capture.__exit__(None, None, None)
        refusals.append(str(refused.value))

    capture.__enter__()
    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    y = x * 2
    capture.__exit__(None, None, None)
    assert refusals == [
        "a capture ends on the thread on which it began: leave its `with` block there"
    ]
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [8, 8]


def test_other_threads_work_is_not_captured() -> None:
    x = torch.ones(2)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = x * 2
        thread = threading.Thread(target=lambda: torch.ones(3).cumsum(0).tolist())
        thread.start()
        thread.join()
    assert [node.op for node in graph.nodes] == ["aten::mul.Tensor"]
    assert y.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("what", ["replay", "update", "slots", "nodes", "memory_bytes"])
def test_empty_and_reset_graphs_say_so(what: str) -> None:
    graph, _ = captured(lambda: torch.ones(2) + 1)
    graph.reset()
    with pytest.raises(CaptureError, match=rf"CapturedGraph\.{what}: nothing is captured"):
        graph.update({}) if what == "update" else getattr(graph, what)()
    assert repr(graph) == "CapturedGraph(empty)"


def test_full_graph_must_be_reset_before_it_captures_again() -> None:
    graph, _ = captured(lambda: torch.ones(2) + 1)
    with pytest.raises(CaptureError, match=r"holds a capture already: call reset\(\)"):
        graphs.capture(graph).__enter__()
    graph.reset()
    with graphs.capture(graph):
        y = torch.ones(2) * 3
    graph.replay()
    assert y.tolist() == [3.0, 3.0]


def test_wrong_arguments_of_capture() -> None:
    with pytest.raises(TypeError, match="capture takes a CapturedGraph, got str"):
        graphs.capture("g")
    with pytest.raises(ValueError, match="capture_error_mode is one of global"):
        graphs.capture(graphs.CapturedGraph(), capture_error_mode="strict")


@pytest.mark.parametrize(
    "options",
    [
        {"auto_dispatch_capture": False},
        {"capture_error_mode": "thread_local"},
        {"capture_error_mode": "relaxed"},
    ],
    ids=str,
)
def test_options_for_other_systems_change_nothing(options: dict[str, Any]) -> None:
    def of(**given: Any) -> graphs.CapturedGraph:
        graph, read = graphs.CapturedGraph(), []
        other = threading.Thread(target=lambda: read.append(torch.ones(2).sum().item()))
        with graphs.capture(graph, **given):
            torch.cumsum(torch.ones(2), 0)
            other.start()  # what would end the capture on its own thread
            other.join()
        assert read == [2.0]
        lost = graphs.CapturedGraph()
        with pytest.raises(CaptureError, match="reads the value"), graphs.capture(lost, **given):
            torch.ones(2).sum().item()
        return graph

    class Cumsum(graphs.GraphOpHandler):
        UPDATE_SPECS = {"cumsum": [("arg", 1, "axis")]}  # noqa: RUF012

    with graphs.graph_handler_scope("cumsum", Cumsum):
        plain, other = of(), of(**options)
    assert str(plain.slots) == str(other.slots) != "{}"
    assert [node.op for node in plain.nodes] == [node.op for node in other.nodes]


X = torch.arange(6.0).reshape(2, 3)


def stepped(**options: Any) -> Callable[[], Any]:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    return torch.optim.SGD([weight], lr=torch.tensor(0.1), **options).step  # type: ignore[arg-type]


def forked() -> torch.Tensor:
    with torch.random.fork_rng():
        return torch.nn.functional.dropout(X, 0.5)


TORCH_READS: dict[str, tuple[Callable[[], Any], str]] = {
    "cov": (lambda: torch.cov(X), "`torch.cov.X.` reads the value"),
    "corrcoef": (lambda: torch.corrcoef(X), "`torch.corrcoef.X.` reads the value"),
    "SGD with a tensor as lr": (stepped(), "reads the value of a tensor float32"),
    "SGD with lists": (stepped(foreach=True), "reads the value of a tensor float32"),
    "fork_rng on the CPU": (forked, "was seeded or set inside the capture"),
}


@pytest.mark.parametrize("what", TORCH_READS)
def test_what_torch_reads_for_itself_is_refused(what: str) -> None:
    action, words = TORCH_READS[what]
    with pytest.raises(CaptureError, match=words):
        captured(action)


def test_a_fused_step_reads_no_rate_on_the_host() -> None:
    captured(stepped(fused=True))


def test_resized_input_is_refused_by_replay() -> None:
    x = torch.ones(4)
    graph, _ = captured(lambda: x * 2)
    x.resize_(1 << 16)
    with pytest.raises(CaptureError, match=r"float32\[4\] of aten::mul.* has other memory now"):
        graph.replay()


def test_failing_operator_is_named_by_replay() -> None:
    index = torch.tensor([1])
    graph, _ = captured(lambda: torch.nn.functional.embedding(index, torch.ones(3, 2)))
    index.fill_(7)
    with pytest.raises(
        IndexError,
        match=r"out of range[\s\S]*in node \d of a captured graph: aten::embedding, called at ",
    ):
        graph.replay()
