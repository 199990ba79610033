"""Programs are drawn, captured, and things happen between replays: a replay equals the model, or
raises an error that names what is different. Only what docs/graphs/capture.md lists goes unseen.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random

import pytest
import torch
import torch._dynamo.config
from tests.sweeps.captured_mutations import MUTATIONS, Mutation
from tests.sweeps.captured_programs import ROWS, WIDTH, Keeper, Kind, Program, SoftplusHandler
from tests.sweeps.support import sized
from torch import Tensor, nn

from bringup import devices, graphs
from bringup.errors import CaptureError
from bringup.graphs._handlers import handlers_of_block

STEPS = 12
DOCUMENT = Path(__file__).parents[2] / "docs" / "graphs" / "capture.md"


class Machine:
    """A captured program; every step changes something, replays, and compares with the model."""

    def __init__(self, seed: int, counts: Counter[str], kind: Kind) -> None:
        self._random = Random(seed)
        self._counts = counts
        self._program = Program(self._random, kind)
        self._trail: list[str] = []
        self._capture()

    def step(self) -> None:
        """One mutation of those that apply."""
        program = self._program
        kinds = [kind() for kind in MUTATIONS if program.kind in kind.kinds]
        mutation = self._random.choice([kind for kind in kinds if kind.applies(program)])
        self._trail.append(type(mutation).__name__)
        undo = mutation.apply(program, self._random)
        error = self._replay_and_compare(mutation)
        if error is not None:
            self._counts["refusals"] += 1
            assert re.search(
                r"'[\w.]+' of \w+|input '[\w.\[\]]+'|weight '[\w.]+'|float\d\d\[|module \w+",
                str(error),
            ), self._where(error)
        if undo is None and error is None:
            return
        if undo is not None:
            undo()
        try:
            program.replay()
        except CaptureError:  # memory that moved does not come back
            self._capture()

    def _capture(self) -> None:
        self._program.capture()
        self._counts["captures"] += 1

    def _replay_and_compare(self, mutation: Mutation) -> CaptureError | None:
        program = self._program
        before = [tensor.clone() for tensor in program.state()]
        replayed: list[Tensor] | None = None
        try:
            with mutation.around_replay(program):
                replayed = program.left_by(program.replay)
        except CaptureError as error:
            if program.kind is Kind.COMPILED:
                raise  # it captures again
            for tensor, content in zip(program.state(), before, strict=True):
                assert torch.equal(tensor, content), self._where("a refused replay wrote")
            return error
        except (RuntimeError, TypeError):
            if program.kind is not Kind.COMPILED or self._model_gives(mutation) is not None:
                raise
            self._counts["calls that fail as the model does"] += 1
            return None
        mutation.after_replay()
        self._counts["replays"] += 1
        same = _equal(replayed, self._model_gives(mutation))
        if not mutation.goes_unseen(program):
            assert same, self._where("a replay differs from the model")
        elif not same:
            self._counts[f"unseen {type(mutation).__name__}"] += 1
            if mutation.blind is None:
                with pytest.raises(CaptureError, match="was written"):
                    program.graph.refresh()
        return None

    def _model_gives(self, mutation: Mutation) -> list[Tensor] | None:
        program = self._program
        compiled = program.kind is Kind.COMPILED
        try:
            with mutation.around_replay(program) if compiled else nullcontext():
                return program.left_by(program.expected, put_back=False)
        except (RuntimeError, TypeError):  # the model cannot run like this
            return None

    def _where(self, what: object) -> str:
        return f"{what}\n  after {', '.join(self._trail)}\n  of {self._program.model}"


def _equal(replayed: list[Tensor], expected: list[Tensor] | None) -> bool:
    return expected is not None and all(
        mine.shape == theirs.shape and torch.allclose(mine, theirs, rtol=0, atol=0, equal_nan=True)
        for mine, theirs in zip(replayed, expected, strict=True)
    )


@pytest.fixture(autouse=True)
def _updatable_softplus() -> Iterator[None]:
    with handlers_of_block():
        graphs.register_graph_handler("aten::softplus")(SoftplusHandler)
        yield


@pytest.fixture(params=["cpu", "npu"])
def _device(request: pytest.FixtureRequest) -> Iterator[None]:
    """The program's device, by default of everything that is made."""
    if request.param == "npu":
        devices.load_driver("sim")
    with torch.device(request.param), torch.no_grad():
        yield


@pytest.mark.usefixtures("_device")
def test_replay_equals_the_model_or_names_what_is_different(sweep_counts: Counter[str]) -> None:
    for seed in range(sized(30, 1000)):
        machine = Machine(seed, sweep_counts, Kind.MODEL)
        for _ in range(STEPS):
            machine.step()
    for kind in MUTATIONS:
        if kind.blind is not None:
            assert sweep_counts[f"unseen {kind.__name__}"], f"{kind.__name__} is seen: unmark it"


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("kind", [Kind.FROZEN, Kind.COMPILED], ids=lambda kind: kind.name.lower())
def test_replay_of_a_compiled_function_equals_the_model_or_names_what_is_different(
    kind: Kind, sweep_counts: Counter[str]
) -> None:
    # each mutation that torch.compile sees may compile anew; at the limit it would give up
    with torch._dynamo.config.patch(recompile_limit=1000):
        for seed in range(sized(1, 25)):
            torch.compiler.reset()
            machine = Machine(1000 + seed, sweep_counts, kind)
            for _ in range(STEPS):
                machine.step()


def test_what_goes_unseen_is_what_the_documentation_lists() -> None:
    text = " ".join(DOCUMENT.read_text().split("## What is not seen")[1].split())
    marks = {mark for kind in MUTATIONS for mark in (kind.blind, kind.blind_when_frozen) if mark}
    assert [mark for mark in marks if f"* {mark}" not in text] == []


@pytest.mark.usefixtures("_device")
def test_state_that_a_run_rebinds_is_refused_and_what_it_writes_in_place_goes_on(
    sweep_counts: Counter[str],
) -> None:
    for seed, place, way in itertools.product(range(sized(1, 20)), Keeper.PLACES, Keeper.WAYS):
        torch.manual_seed(seed)
        blocks = [nn.Linear(WIDTH, WIDTH), Keeper(place, way), nn.GELU()]
        Random(seed).shuffle(blocks)
        model, x = nn.Sequential(*blocks), torch.randn(ROWS, WIDTH)
        eager, graph = copy.deepcopy(model), graphs.CapturedGraph()
        if way != "written in place":
            path = r"[\w.\[\]]+(\[0\]|\['first'\]|first)"
            with pytest.raises(CaptureError, match=f"reads '{path}' and puts another tensor in"):
                _capture(graph, model, x)
            sweep_counts["rebinding runs refused"] += 1
            continue
        output = _capture(graph, model, x)
        for _ in range(3):
            graph.replay()
            assert torch.equal(output, eager(x)), place


def _capture(graph: graphs.CapturedGraph, model: nn.Module, x: Tensor) -> Tensor:
    with graphs.capture(graph):
        output: Tensor = model(x)
    return output
