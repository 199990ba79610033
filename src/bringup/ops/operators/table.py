"""A package's kernels for torch's operators as a table, declared and taken out as a whole."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from bringup import jit
from bringup.ops.operators.family import Kind
from bringup.ops.operators.operator_kernel import OperatorKernel, kernel

Supported: TypeAlias = torch.dtype | Literal["floating", "integral", "bool"]


@dataclass(frozen=True)
class Operator:
    """One operator of torch and its kernel: the arguments of `devices.kernel`, which says more.

    Attributes:
        name: "aten::add", for the family of its usual overload, or with the overload.
        supports: the dtypes that it computes in; others fall back.
        expression: what a pointwise kernel computes for one element; "" where it has a file.
        file: the source, in the table's folder.
        kind: of the kernel.
        entry: the function or class in the file.
        dtypes: of a raw kernel, macro -> argument whose C type it is.
        strided: of a raw kernel, the arguments and results that it takes in any layout.
        flags: more options of the compiler.
        args: of a raw kernel with plain values, what it is called with.
        grid: its blocks.
        block: the threads of a block.
        host: of a raw kernel, whether it is a host entry.
    """

    name: str
    supports: tuple[Supported, ...]
    expression: str = ""
    file: str = ""
    kind: Kind = "pointwise"
    entry: str = ""
    dtypes: Mapping[str, str] | None = None
    strided: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    args: str | None = None
    grid: str | Sequence[str] = "1"
    block: int | Sequence[int] = 1
    host: bool = False


class OperatorTable:
    """The kernels of a package, which are there together or not at all.

    Args:
        operators: its rows.
        folder: where their files are.
        flags: more options of the compiler, of every row.
    """

    def __init__(
        self, operators: Iterable[Operator], folder: Path | None = None, flags: Sequence[str] = ()
    ) -> None:
        self._operators = tuple(operators)
        self._folder = folder
        self._flags = tuple(flags)
        self._lock = threading.Lock()
        self._loaded: dict[str, OperatorKernel] = {}

    def load(self) -> dict[str, OperatorKernel]:
        """Give the loaded driver's device the table's kernels; the same ones a second time. Each is
        compiled at its first call. Returns the handle of each operator, by its name in the table.
        Raises `DeviceError`: no driver is loaded, or other code has a kernel for one of the
        operators.
        """
        with self._lock:
            if not self._loaded:
                try:
                    for operator in self._operators:
                        self._loaded[operator.name] = self._declared(operator)
                except BaseException:
                    self._close_all()
                    raise
            return dict(self._loaded)

    def unload(self) -> None:
        """Take all of them out again: the operators fall back as before."""
        with self._lock:
            self._close_all()

    def _close_all(self) -> None:
        while self._loaded:
            self._loaded.popitem()[1].close()

    def _declared(self, operator: Operator) -> OperatorKernel:
        flags = (*self._flags, *operator.flags)
        if operator.expression:
            return kernel(
                operator.name,
                expression=operator.expression,
                supports=operator.supports,
                flags=flags,
            )
        path = (self._folder or Path()) / operator.file
        is_raw = operator.kind == "raw"
        size = {} if operator.args is None else {"grid": operator.grid, "block": operator.block}
        return kernel(
            operator.name,
            source=jit.Source(path, entry=operator.entry) if is_raw else path,
            kind=operator.kind,
            entry=None if is_raw else operator.entry,
            supports=operator.supports,
            dtypes=operator.dtypes,
            strided=operator.strided,
            flags=flags,
            args=operator.args,
            host=operator.host,
            **size,  # type: ignore[arg-type]
        )
