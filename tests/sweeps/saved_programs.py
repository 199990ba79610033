"""Random programs captured and saved here, loaded and replayed in another process. As a program:
`python -m tests.sweeps.saved_programs DRIVER DEVICE FOLDER SEED ...`, which compares with eager.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from tests.sweeps.replay_programs import NUMBERED, NativeProgram, Program, same

from bringup import devices, graphs
from bringup.graphs._handlers import handlers_of_block
from bringup.graphs._inputs import Placeholders

__all__ = ["save"]


def _program(seed: int, device: str) -> tuple[Random, Program]:
    random = Random(seed)
    torch.manual_seed(seed)
    return random, (Program if seed % 2 else NativeProgram)(random, device)


def save(folder: Path, seeds: Sequence[int], device: str) -> None:
    """Save a graph for each program, with the numbers and inputs of an update."""
    with handlers_of_block():
        for name, (slot, _) in NUMBERED.items():
            body = {"UPDATE_SPECS": {name: [("kwarg", slot, slot)]}}
            graphs.register_graph_handler(name)(type("Numbered", (graphs.GraphOpHandler,), body))
        for seed in seeds:
            random, program = _program(seed, device)
            graph = graphs.CapturedGraph(optimize=2 if seed % 20 == 7 else seed % 2)
            with torch.no_grad(), graphs.capture(graph, inputs=Placeholders(program.inputs)):
                graph.outputs = program.run()
            program.change(random)
            with torch.no_grad():
                program.run()  # which names the slots
            graph.update(program.slots)
            graphs.save(graph, folder / f"{seed}.bgraph")


def _compare(folder: Path, seed: int, device: str) -> None:
    random, program = _program(seed, device)
    graph = graphs.load(folder / f"{seed}.bgraph")
    for step in range(4):
        program.change(random)
        with torch.no_grad():
            expected = program.run()
        if step > 0:  # the first ones are in the file
            for ours, theirs in zip(graph.inputs.values(), program.inputs, strict=True):
                repeated = theirs.stride(0) == 0
                (ours[:1] if repeated else ours).copy_(theirs[:1] if repeated else theirs)
            graph.update(program.slots)
        graph.replay()
        assert not [node for node in graph.levels() if "other bits" in node.reason], seed
        assert same(graph.outputs, expected), (seed, step, graph.levels())


if __name__ == "__main__":
    driver, device, folder, *seeds = sys.argv[1:]
    if device != "cpu":
        devices.load_driver(driver)
    for seed in map(int, seeds):
        _compare(Path(folder), seed, device)
