"""Training with captured parts, while gradients, weights, buffers and optimizers change between
replays: everything is eager's, or the error names what is different.
"""

from __future__ import annotations

import copy
import io
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from tests.sweeps.support import part
from torch import Tensor, nn

from bringup import devices, graphs
from bringup.errors import CaptureError, ContractError

Make = Callable[[Any], torch.optim.Optimizer]
BOTH, NPU = ("cpu", "npu"), ("npu",)
optim = torch.optim
OPTIMIZERS: dict[str, tuple[Make, tuple[str, ...]]] = {
    "sgd": (lambda p: optim.SGD(p, lr=0.1), BOTH),
    "momentum": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9), BOTH),
    "nesterov": (
        lambda p: optim.SGD(
            p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, foreach=False
        ),
        BOTH,
    ),
    "fused sgd": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, fused=True), ("cpu",)),
    "rmsprop": (lambda p: optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5), BOTH),
    "adadelta": (lambda p: optim.Adadelta(p, lr=0.5), BOTH),
    "fused adagrad": (lambda p: optim.Adagrad(p, lr=0.1, fused=True), ("cpu",)),
    "fused adam": (lambda p: optim.Adam(p, lr=0.01, fused=True, amsgrad=True), ("cpu",)),
    "adam": (lambda p: optim.Adam(p, lr=0.01, capturable=True), NPU),
    "adamw": (lambda p: optim.AdamW(p, lr=0.01, capturable=True, foreach=True, amsgrad=True), NPU),
    "named": (lambda p: optim.SGD([("weight", one) for one in p], lr=0.1, momentum=0.5), BOTH),
}
WIDTH = 3


class Side:
    """A model in training, eager or with captured parts."""

    def __init__(self, optimizer: Make, device: str) -> None:
        self.model = nn.Sequential(
            nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)
        ).to(device)
        self.optimizer = optimizer(self.model.parameters())
        self.x = torch.zeros(5, WIDTH, device=device)
        self.extra: list[Tensor] = []
        self.device = device
        self.loss: Any = None
        self.saved: Any = None

    @property
    def first(self) -> nn.Parameter:
        return self.model[0].weight  # type: ignore[no-any-return, union-attr]

    def forward(self) -> None:
        self.loss = self.model(self.x).square().mean()

    def backward(self) -> None:
        self.loss.backward()

    def step(self) -> None:
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """Everything that somebody can look at."""
        found: dict[str, Any] = dict(self.model.state_dict())
        for name, parameter in self.model.named_parameters():
            found[f"{name}.grad"] = parameter.grad
            for key, value in self.optimizer.state.get(parameter, {}).items():
                found[f"{name}.{key}"] = value
        found |= {f"extra {number}": one for number, one in enumerate(self.extra)}
        return {key: one.detach() if isinstance(one, Tensor) else one for key, one in found.items()}


def _numbers(like: Tensor, scale: float = 1.0) -> Tensor:
    return torch.linspace(-scale, scale, like.numel(), device=like.device).view_as(like)


def _grad_replaced(side: Side) -> None:
    side.first.grad = _numbers(side.first)


def _grad_of_all_replaced_by_views(side: Side) -> None:
    flat = torch.zeros(sum(one.numel() for one in side.model.parameters()), device=side.device)
    side.extra.append(flat)
    parts = flat.split([one.numel() for one in side.model.parameters()])
    for parameter, of_flat in zip(side.model.parameters(), parts, strict=True):
        parameter.grad = of_flat.view_as(parameter)


def _grad_deleted(side: Side) -> None:
    side.first.grad = None


def _grad_data_replaced(side: Side) -> None:
    if side.first.grad is not None:
        side.first.grad.data = _numbers(side.first)


def _grad_written(side: Side) -> None:
    if side.first.grad is not None:
        side.first.grad.mul_(3)


def _data_replaced(side: Side) -> None:
    side.first.data = _numbers(side.first)


@torch.no_grad()
def _weight_written(side: Side) -> None:
    side.model[3].weight.mul_(-2)  # type: ignore[operator, union-attr]


def _buffer_written(side: Side) -> None:
    side.model[1].running_var.fill_(4)  # type: ignore[operator, union-attr]


def _state_loaded(side: Side) -> None:
    side.optimizer.load_state_dict(copy.deepcopy(side.saved))


def _state_replaced(side: Side) -> None:
    for key, value in side.optimizer.state.get(side.first, {}).items():
        if isinstance(value, Tensor) and value.dim() > 0:
            side.optimizer.state[side.first][key] = _numbers(value).abs()


def _state_written(side: Side) -> None:
    for value in side.optimizer.state.get(side.first, {}).values():
        if isinstance(value, Tensor) and value.dim() > 0:
            value.mul_(2)


def _copied(side: Side, model: nn.Module) -> None:
    """A copy is its own: its weights are written and it gets gradients."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.grad = None
            parameter.mul_(0.5)
    y = model(side.x)
    y.sum().backward()
    side.extra += [y.detach(), *(one.grad for one in model.parameters() if one.grad is not None)]


def _pickled(side: Side) -> None:
    file = io.BytesIO()
    torch.save(side.model, file)
    file.seek(0)
    _copied(side, torch.load(file, weights_only=False))


def _group_added(side: Side) -> None:
    extra = nn.Parameter(torch.ones(2, device=side.device))
    extra.grad = torch.ones_like(extra)
    named = "param_names" in side.optimizer.param_groups[0]
    side.optimizer.add_param_group({"params": [("extra", extra) if named else extra]})
    side.extra.append(extra)


def _eager_step(side: Side) -> None:
    """As when one batch of a loop does not fit into the graph."""
    loss = nn.functional.linear(side.x, side.first).square().mean()
    loss.backward()
    side.optimizer.step()


BETWEEN: dict[str, Callable[[Side], object]] = {
    "nothing": lambda side: None,
    "zero_grad()": lambda side: side.optimizer.zero_grad(),
    "zero_grad(False)": lambda side: side.optimizer.zero_grad(set_to_none=False),
    "grad replaced": _grad_replaced,
    "grads are views of one buffer": _grad_of_all_replaced_by_views,
    "grad deleted": _grad_deleted,
    "grad.data replaced": _grad_data_replaced,
    "grad written": _grad_written,
    ".data replaced": _data_replaced,
    "weight written": _weight_written,
    "buffer written": _buffer_written,
    "load_state_dict": _state_loaded,
    "state replaced": _state_replaced,
    "state written": _state_written,
    "deepcopy": lambda side: _copied(side, copy.deepcopy(side.model)),
    "pickled": _pickled,
    "requires_grad flipped": lambda side: side.first.requires_grad_(False),
    "group added": _group_added,
    "eager step": _eager_step,
}


PLACES = {
    "backward": ("first", "before the step"),
    "step": ("first", "before the backward", "before the step"),
    "both": ("first",),
    "callable": ("first", "before the backward", "before the step"),
}


class Case(NamedTuple):
    """What is captured, whether gradients are there before the capture, and when what is done."""

    optimizer: str
    device: str
    captured: str
    kept: bool
    between: str
    place: str


def _cases() -> list[Case]:
    rows = [(name, device) for name, (_, places) in OPTIMIZERS.items() for device in places]
    found = []
    for (name, device), captured, kept, between in itertools.product(
        rows, PLACES, (False, True), BETWEEN
    ):
        depends = captured == "both" or (captured == "step" and not kept)
        if not depends and name != "momentum":
            continue  # it is the same with every optimizer
        found += [Case(name, device, captured, kept, between, one) for one in PLACES[captured]]
    return found


def may_be_refused(case: Case) -> bool:
    """Whether an error is allowed. Everything else has to work."""
    grads = case.between in ("grad replaced", "grads are views of one buffer", "eager step")
    steps = case.captured in ("step", "both")
    return {
        "grad.data replaced": case.captured != "callable",
        ".data replaced": True,
        "load_state_dict": steps,
        "state replaced": steps,
        "group added": steps,
        "requires_grad flipped": case.captured != "step" or not case.kept,
    }.get(
        case.between,
        # where there was none, a backward that would add to another one is refused
        (grads and not case.kept and case.captured in ("backward", "both"))
        # an optimizer leaves out what has no gradient, a captured step cannot
        or (
            case.captured == "step"
            and case.place == "before the step"
            and case.between in ("zero_grad()", "grad deleted")
        ),
    )


def _round(side: Side, case: Case, part_of: dict[str, Callable[[], object]]) -> None:
    """One step of training; `part_of`: what does it, where it is captured."""
    act = BETWEEN[case.between]
    if not case.kept:
        side.optimizer.zero_grad()
    if case.place == "first":
        act(side)
    part_of.get("forward", side.forward)()
    if case.place == "before the backward":
        act(side)
    part_of.get("backward", side.backward)()
    if case.place == "before the step":
        act(side)
    part_of.get("step", side.step)()


def _capture(side: Side, captured: str) -> tuple[dict[str, Callable[[], object]], Any]:
    """What takes the place of the captured parts, and the graph."""
    if captured == "callable":
        graphs.make_graphed_callables(side.model, (side.x,))
        return {}, None
    graph = graphs.CapturedGraph()
    nothing = {"forward": lambda: None, "backward": lambda: None, "step": lambda: None}
    with graphs.capture(graph):
        if captured != "step":
            side.forward()
            side.backward()
        if captured != "backward":
            side.step()
    if captured == "step":
        return {"step": graph.replay}, graph
    return nothing | (
        {"backward": graph.replay}
        if captured == "both"
        else {"backward": graph.replay, "step": side.step}
    ), graph


def _same(mine: Any, theirs: Any) -> bool:
    if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor):
        return bool(mine is theirs or mine == theirs)
    return torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


def _sides(case: Case) -> tuple[Side, Side]:
    torch.manual_seed(0)
    make = OPTIMIZERS[case.optimizer][0]
    ours, theirs = Side(make, case.device), Side(make, case.device)
    theirs.model.load_state_dict(ours.model.state_dict())
    for side in (ours, theirs):
        side.x.copy_(torch.linspace(-1, 2, side.x.numel()).view_as(side.x).sin())
        for _ in range(2):
            side.forward()
            side.backward()
            side.step()
        side.saved = copy.deepcopy(side.optimizer.state_dict())
        if not case.kept:
            side.optimizer.zero_grad()
    if case.captured == "step":
        for side in (ours, theirs):
            side.forward()
            side.backward()
    return ours, theirs


@pytest.fixture(autouse=True)
def _gradients() -> Iterator[None]:
    devices.load_driver("sim")
    with torch.enable_grad():
        yield


CASES = _cases()
LISTED = [
    Case("momentum", "cpu", "backward", False, "zero_grad()", "first"),
    Case("momentum", "cpu", "step", False, "load_state_dict", "first"),
    Case("momentum", "cpu", "step", False, "zero_grad()", "first"),
    Case("momentum", "cpu", "callable", False, "deepcopy", "first"),
    Case("momentum", "cpu", "callable", False, "weight written", "before the backward"),
]


def _error_of(run: Callable[..., object], *args: Any) -> Exception | None:
    try:
        run(*args)
    except (RuntimeError, ContractError) as error:
        return error
    return None


@pytest.mark.parametrize(
    "case", part(CASES, always=LISTED), ids=lambda case: "-".join(map(str, case))
)
def test_training_is_eagers_or_the_error_names_what_is_different(case: Case) -> None:
    ours, theirs = _sides(case)
    captured, graph = _capture(ours, case.captured)
    for number in range(3):
        now = case if number == 1 else case._replace(between="nothing")
        for side in (ours, theirs):
            side.x.mul_(1.5)
        eagers = _error_of(_round, theirs, now, {})
        error = _error_of(_round, ours, now, captured)
        if error is None:
            assert eagers is None, f"eager raises {eagers}"
            continue
        if case.captured == "step" and isinstance(eagers, RuntimeError):
            return  # its backward is eager's own
        assert isinstance(error, (CaptureError, ContractError)), error
        assert eagers is not None or may_be_refused(case), error
        assert re.search(r"'[\w.\[\]]+' of \w+|parameter '[\w.\[\] ]+'", str(error)), error
        if case.between not in ("load_state_dict", "state replaced"):
            return
        graph.refresh()  # then the step that was refused can be taken
        graph.replay()
        break
    mine = ours.state()
    for key, value in theirs.state().items():
        assert _same(mine[key], value), f"{key}: {mine[key]}, eager has {value}"
