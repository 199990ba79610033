"""What is timed: an operator, arguments of it by size, and other ways to the same results."""

from __future__ import annotations

import contextlib
import difflib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from bringup import kernels, ops
from bringup.cli.bench import tvm_ffi_peer
from bringup.cli.trial.trial_model import SubjectError, find_callable
from bringup.errors import BringupError, SchemaError, first_line
from bringup.ops.validation.basic_checks import Failed, compare, run
from bringup.ops.validation.report import subject_of
from bringup.ops.validation.samples import Form, Sample, generate, read

Call = Callable[..., Any]
Shape = tuple[int, ...]
"""Sizes of the first tensor; a single number is how many elements it has."""

_INDUCTOR, _TVM_FFI = "inductor", "tvm-ffi"
_ROW = 1024  # elements, where only the number of all is given
_TENSORS = 3  # of a call, where nothing is known yet: two are read, one is written
_CACHES = 32 << 10, 32 << 20  # bytes, where the system does not tell


@dataclass(frozen=True)
class Case:
    """What a call does: its first tensor's `shape` and `dtype`, `bytes` moved, `flops` (or 0)."""

    shape: str
    dtype: str
    bytes: float
    flops: float


class Subject:
    """An operator to time: its `name`, the `call` of it, and `peers`, other ways to the same
    results by name. The first that the user names says what is right; tvm-ffi, where it is
    installed, calls the same kernel. `notes` are for the reader.
    """

    def __init__(
        self,
        target: str,
        against: Sequence[str] = (),
        *,
        inductor: bool = False,
        dtype: torch.dtype | None = None,
        inputs: str | None = None,
        flops: str | None = None,
        moved: str | None = None,
        tolerance: float | None = None,
        memory: float = math.inf,
    ) -> None:
        """Find what the options name; arguments fill at most `memory`. Raises `SubjectError`."""
        self.call = _registered(target) if "::" in target else function_at(target)
        try:
            self._operator = subject_of(target if "::" in target else self.call)
        except TypeError as error:
            raise SubjectError(f"{target}: {error}") from error
        self.name = self._operator.name
        self.peers: dict[str, Call] = {}
        for peer in against:
            name, _, place = peer.rpartition("=")
            self.peers[name or "eager"] = function_at(place)
        self.notes = [] if self.peers else ["Nothing said what is right: give --against."]
        if self.peers and inductor:
            first = next(iter(self.peers.values()))
            self.peers[_INDUCTOR] = torch.compile(first, dynamic=True)
        self._dtype = dtype
        self._inputs = None if inputs is None else function_at(inputs)
        self._flops = None if flops is None else _number_or_function(flops)
        self._bytes = None if moved is None else function_at(moved)
        self._memory = memory
        self._has_tvm_ffi = tvm_ffi_peer.is_installed()
        self._allowed = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}

    def case(self, shape: Shape) -> tuple[Case, Sample]:
        """Return a call of this size, and its arguments. Raises `SubjectError` where there are
        none, or results differ from the first peer's, and `MemoryError`.
        """
        sample = self._sample(shape)
        if not sample.tensors():
            raise SubjectError(f"{self.name}: there is no tensor among what --inputs returns")
        first = sample.tensors()[0]
        results = run(self.call, self._operator, sample)
        self.peers.pop(_TVM_FFI, None)  # of the size before
        flops = self._verify(sample, results, shape_text(first.shape)) if self.peers else 0.0
        written = results[len(results) - len(sample.written(self._operator.facts)) :]
        places = {one.data_ptr() for one in written}  # those may be returned, too
        fresh = [one for one in results if isinstance(one, torch.Tensor)]
        fresh = [one for one in fresh if one.data_ptr() not in places]
        if self._has_tvm_ffi:
            self._call_through_tvm_ffi(sample, results, fresh)
        if callable(self._flops):
            flops = self._flops(*sample.args, **sample.kwargs)
        elif self._flops is not None:
            flops = self._flops * sum(one.numel() for one in fresh or written)
        size = sum({id(one): one.nbytes for one in (*sample.tensors(), *fresh)}.values())
        if self._bytes is not None:
            size = self._bytes(*sample.args, **sample.kwargs)
        if not (size > 0 and flops >= 0):
            raise SubjectError(
                f"{self.name}: a call cannot move {size} bytes, or take {flops} FLOP"
            )
        dtype = str(first.dtype).removeprefix("torch.")
        return Case(shape_text(first.shape), dtype, float(size), float(flops)), sample

    def _sample(self, shape: Shape) -> Sample:
        if self._inputs is not None:
            return read(self.name, [self._inputs(*shape)])[0]
        dtype = self._dtype or torch.float32
        ranks = Form.ranks if len(shape) == 1 else (len(shape),)
        sizes = functools.partial(sizes_of_rank, shape)
        form = Form(sizes, ranks, dtype, optional=(False,), memory=self._memory)
        try:
            (sample,) = generate(self.name, form)
        except ValueError as error:
            raise SubjectError(f"{error} (here: --inputs MODULE:FUNCTION)") from error
        taken = {one.dtype: None for one in sample.tensors()}
        if self._dtype is not None and dtype not in taken:
            others = ", ".join(map(str, taken))
            raise SubjectError(f"{self.name}: no argument takes {dtype}, they take {others}")
        return sample

    def _verify(self, sample: Sample, results: list[Any], size: str) -> float:
        """Compare all results with the first peer's; return its operations that torch knows."""
        (reference, call), *others = self.peers.items()
        with FlopCounterMode(display=False) as counter:
            expected = run(call, self._operator, sample)
        found = {self.name: results}
        for name, peer in others:
            try:
                found[name] = run(peer, self._operator, sample)
            except Exception as error:
                if name != _INDUCTOR:
                    raise
                del self.peers[name]
                self.notes.append(f"Inductor failed: {first_line(error)}")
        for name, got in found.items():
            try:
                compare(got, expected, f"{name} is not {reference} at {size}", **self._allowed)
            except Failed as error:
                raise SubjectError(f"{error} (--tolerance allows more)") from error
        return float(counter.get_total_flops())

    def _call_through_tvm_ffi(
        self, sample: Sample, results: list[Any], fresh: list[torch.Tensor]
    ) -> None:
        """Make it a peer at this size, or say once why not."""
        try:
            peer = tvm_ffi_peer.peer(self.name, sample, fresh)
            compare(run(peer, self._operator, sample), results, "its results differ")
        except (BringupError, Failed, RuntimeError) as error:
            self._has_tvm_ffi = False
            self.notes.append(
                f"tvm-ffi is left out: {first_line(error)}; --against takes a wrapper."
            )
        else:
            self.peers[_TVM_FFI] = peer


def _registered(name: str) -> Call:
    kernels.load()
    ops.load_op_plugins()
    try:
        found = subject_of(name)
    except SchemaError as error:
        known = {schema.name for schema in torch._C._jit_get_all_schemas()}
        near = "".join(f"did you mean {one}? " for one in difflib.get_close_matches(name, known, 1))
        raise SubjectError(f"{error}; {near}MODULE:OP imports a module first") from error
    call: Call = found.fast or found.overload
    return call


def function_at(place: str) -> Call:
    """Return what `module:name` or `file.py:name` is. Raises `SubjectError`."""
    module, colon, name = place.rpartition(":")
    if not colon or not module or not name:
        raise SubjectError(f"{place!r}: expected module:name, file.py:name or namespace::operator")
    return find_callable(module, name)


def _number_or_function(text: str) -> float | Call:
    try:
        return float(text)
    except ValueError:
        return function_at(text)


def shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "1"


def sizes_of_rank(shape: Shape, rank: int) -> Shape:
    """Return sizes of a tensor of this rank: those that are wanted, or of as many elements."""
    if len(shape) > 1:
        return (shape + shape[-1:] * rank)[:rank]
    (count,) = shape
    row = _ROW if rank > 1 and count % _ROW == 0 else count
    return ((count // row, *[1] * (rank - 2)) if rank > 1 else ()) + (row,)


def sweep(itemsize: int, memory: int) -> list[Shape]:
    """Return numbers of elements that fill half the first to twice the last cache, or `memory`."""
    first, last = _cache_sizes()
    most = min(2 * last, memory)
    filled = [size for power in range(16) if (size := (first // 2) << 3 * power) <= most // 2]
    counts = (size // (_TENSORS * itemsize) for size in (*filled, most))
    return [(1 << (count.bit_length() - 1),) for count in counts if count]


def _cache_sizes() -> tuple[int, int]:
    """Return the bytes of the smallest and the largest data cache of a processor."""
    sizes = []
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        with contextlib.suppress(OSError, ValueError):
            if (index / "type").read_text().strip() != "Instruction":
                sizes.append(int((index / "size").read_text().strip().removesuffix("K")) << 10)
    return (min(sizes), max(sizes)) if sizes else _CACHES
