"""Runs programs of the corpus in a process whose environment and arguments choose the device's
mode; prints what differs as JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tests.sweeps.reports import (
    captured_programs,
    device_programs,
    network_programs,  # noqa: F401 - adds to the programs of a device
    rewritten_programs,
)

from bringup import devices, graphs

KINDS = {
    "device": device_programs.PROGRAMS,
    "captured": captured_programs.PROGRAMS,
    "compiled": rewritten_programs.PROGRAMS,
}
REPLAYS = 3
# What a kernel of the device says when it is waited for, with the operator and the index.
ASYNCHRONOUS_INDEX = re.compile(
    r"operator 'aten::\S+' failed in stream .* index -?\d+ is outside dimension \d+ of size \d+"
)


def cases() -> list[str]:
    """`kind:name` of every program."""
    return [f"{kind}:{name}" for kind, programs in KINDS.items() for name in programs]


def difference(expected: Any, got: Any) -> str:
    """What differs between two trees of tensors and objects, or an empty text."""
    wanted, tree = torch.utils._pytree.tree_flatten(expected)
    found, other = torch.utils._pytree.tree_flatten(got)
    if tree != other:
        return f"expected {tree}, got {other}"
    for place, (want, find) in enumerate(zip(wanted, found, strict=True)):
        if isinstance(want, torch.Tensor):
            words = difference_of_tensors(want.detach(), find.detach())
        elif isinstance(want, float):
            words = "" if abs(want - find) <= 1e-5 * max(1, abs(want)) else f"{find} for {want}"
        else:
            words = "" if want == find else f"{find!r} for {want!r}"
        if words:
            return f"result {place}: {words}"
    return ""


def difference_of_tensors(want: Any, find: Any) -> str:
    """Values to the rounding of sums, the rest exactly."""
    if want.layout is torch.strided and want.numel() > 1 and want.stride() != find.stride():
        return f"strides {find.stride()} for {want.stride()}"
    loose = {"rtol": 1e-4, "atol": 1e-5} if want.dtype in (torch.float32, torch.complex64) else {}
    try:
        torch.testing.assert_close(find.cpu(), want.cpu(), equal_nan=True, **loose)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def outcome(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What a call gives or raises; an asynchronous failure is one of the call."""
    torch.manual_seed(0)
    try:
        result = function()
        torch.accelerator.synchronize()
    except Exception as error:
        return None, error
    return result, None


def difference_on_device(program: Callable[[str], Any], device: str) -> str:
    """Between the CPU's outcome and the device's."""
    (want, expected), (got, raised) = (
        outcome(lambda: program("cpu")),
        outcome(lambda: program(device)),
    )
    if type(expected) is IndexError and ASYNCHRONOUS_INDEX.search(str(raised)):
        return ""
    if type(expected) is not type(raised):
        return f"expected {expected!r}, got {raised!r}"
    return "" if expected is not None else difference(want, got)


def difference_in_replays(program: captured_programs.Captured, device: str) -> str:
    """Between eager and replays with other inputs; of the inputs, too, which may be written."""
    graph, inputs = graphs.CapturedGraph(), program.inputs(device, 1)
    with torch.no_grad(), graphs.capture(graph, gradients=program.gradients):
        got = program.function(*inputs)
    for seed in range(2, 2 + REPLAYS):
        own = program.inputs(device, seed)
        for place, value in zip(inputs, own, strict=True):
            place.copy_(value)
        torch.manual_seed(seed)
        graph.replay()
        torch.manual_seed(seed)
        with torch.no_grad():
            want = program.function(*own)
        if words := difference((want, own), (got, inputs)):
            return f"replay {seed - 1}: {words}"
    return ""


def difference_in_compiled(name: str, device: str) -> str:
    """Between eager and the modes that users take; the second call is a replay."""
    function, shapes = rewritten_programs.PROGRAMS[name]
    for options in ({}, {"mode": "serve"}):
        torch.compiler.reset()
        compiled = torch.compile(function, backend="bringup", options=options)
        for seed in (1, 2):
            given = [device_programs.values(device, *s, seed=seed) for s in shapes]
            own = [x.clone() for x in given]
            with torch.no_grad():
                got, want = compiled(*given), function(*own)
            if words := difference((want, own), (got, given)):
                return f"{options}, call {seed}: {words}"
    return ""


def failures(chosen: list[str], device: str) -> Iterator[str]:
    """One line for each program that differs."""
    for case in chosen:
        kind, name = case.split(":")
        try:
            if kind == "device":
                words = difference_on_device(device_programs.PROGRAMS[name], device)
            elif kind == "captured":
                words = difference_in_replays(captured_programs.PROGRAMS[name], device)
            else:
                words = difference_in_compiled(name, device)
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
        if words:
            yield f"{case} on {device}: {words[:400]}"


def main() -> None:
    """Runs the named programs on the device."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="npu")
    parser.add_argument("--kernels", action="store_true", help="with those of sim_ops")
    parser.add_argument("cases", nargs="*")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    devices.load_driver("sim")
    if chosen.kernels:
        import bringup_sim_ops

        bringup_sim_ops.load()
    json.dump(list(failures(chosen.cases or cases(), chosen.device)), sys.stdout)


if __name__ == "__main__":
    main()
