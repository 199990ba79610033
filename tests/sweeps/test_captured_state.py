"""Programs are drawn, captured, and things happen between replays: a replay equals the model, or
raises an error that names what is different. Only what docs/graphs/capture.md lists goes unseen.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import torch
from tests.sweeps.captured_mutations import MUTATIONS, Mutation
from tests.sweeps.captured_programs import Program
from tests.sweeps.support import sized
from torch import Tensor

from bringup import graphs
from bringup.errors import CaptureError

STEPS = 12
DOCUMENT = Path(__file__).parents[2] / "docs" / "graphs" / "capture.md"


class Machine:
    """A captured program; every step changes something, replays, and compares with the model."""

    def __init__(self, seed: int, counts: Counter[str], *, frozen: bool = False) -> None:
        self._random = Random(seed)
        self._counts = counts
        self._program = Program(self._random, frozen=frozen)
        self._trail: list[str] = []
        self._capture()

    def step(self) -> None:
        """One mutation of those that apply."""
        kinds = [kind() for kind in MUTATIONS]
        mutation = self._random.choice([kind for kind in kinds if kind.applies(self._program)])
        self._trail.append(type(mutation).__name__)
        undo = mutation.apply(self._program, self._random)
        error = self._replay_and_compare(mutation)
        if error is not None:
            self._counts["refusals"] += 1
            assert re.search(
                r"'[\w.]+' of \w+|weight '[\w.]+'|float\d\d\[|module \w+", str(error)
            ), self._where(error)
        if undo is None and error is None:
            return
        if undo is not None:
            undo()
        try:
            self._program.graph.replay()
        except CaptureError:  # memory that moved does not come back
            self._capture()

    def _capture(self) -> None:
        self._program.graph = graphs.CapturedGraph()
        with graphs.capture(self._program.graph):
            self._program.output = self._program.run()
        self._counts["captures"] += 1

    def _replay_and_compare(self, mutation: Mutation) -> CaptureError | None:
        program = self._program
        before = [tensor.clone() for tensor in program.state()]
        random = [generator.get_state() for generator in program.generators()]
        try:
            with mutation.around_replay():
                program.graph.replay()
        except CaptureError as error:
            for tensor, content in zip(program.state(), before, strict=True):
                assert torch.equal(tensor, content), self._where("a refused replay wrote")
            return error
        mutation.after_replay()
        self._counts["replays"] += 1
        replayed = [program.output.clone(), *(tensor.clone() for tensor in program.state())]
        for tensor, content in zip(program.state(), before, strict=True):
            tensor.copy_(content)
        replayed += [generator.get_state() for generator in program.generators()]
        for generator, state in zip(program.generators(), random, strict=True):
            generator.set_state(state)
        same = self._model_gives(replayed)
        blind = mutation.blind
        if self._program.frozen:
            blind = blind or mutation.blind_when_frozen
        if blind is None:
            assert same, self._where("a replay differs from the model")
        elif not same:
            self._counts[f"unseen {type(mutation).__name__}"] += 1
            if mutation.blind is None:
                with pytest.raises(CaptureError, match="was written"):
                    program.graph.refresh()
        return None

    def _model_gives(self, replayed: list[Tensor]) -> bool:
        try:
            expected = [self._program.expected(), *self._program.state()]
            expected += [generator.get_state() for generator in self._program.generators()]
        except (RuntimeError, TypeError):  # the model cannot run like this
            return False
        return all(
            mine.shape == theirs.shape
            and torch.allclose(mine, theirs, rtol=0, atol=0, equal_nan=True)
            for mine, theirs in zip(replayed, expected, strict=True)
        )

    def _where(self, what: object) -> str:
        return f"{what}\n  after {', '.join(self._trail)}\n  of {self._program.model}"


@torch.no_grad()
def test_replay_equals_the_model_or_names_what_is_different(sweep_counts: Counter[str]) -> None:
    for seed in range(sized(30, 1500)):
        machine = Machine(seed, sweep_counts)
        for _ in range(STEPS):
            machine.step()
    for kind in MUTATIONS:
        if kind.blind is not None:
            assert sweep_counts[f"unseen {kind.__name__}"], f"{kind.__name__} is seen: unmark it"


@torch.no_grad()
def test_replay_of_a_frozen_function_equals_the_model_or_names_what_is_different(
    sweep_counts: Counter[str],
) -> None:
    for seed in range(sized(2, 40)):
        torch.compiler.reset()
        machine = Machine(1000 + seed, sweep_counts, frozen=True)
        for _ in range(STEPS):
            machine.step()


def test_what_goes_unseen_is_what_the_documentation_lists() -> None:
    text = " ".join(DOCUMENT.read_text().split("## What is not seen")[1].split())
    marks = {mark for kind in MUTATIONS for mark in (kind.blind, kind.blind_when_frozen) if mark}
    assert [mark for mark in marks if f"* {mark}" not in text] == []
