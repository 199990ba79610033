"""Loop nests that one launch computes: none of them needs what another one writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bringup.compiler.inductor.kernel import LoopKernel, Parameter, indented
from bringup.compiler.inductor.launch import ENTRY
from bringup.compiler.inductor.torch_private import OrderedSet

_MOST = 60  # parameters: a call of a C function has room for some sixty words
_FAULT = "BRINGUP_GLOBAL int32_t* fault"


@dataclass(frozen=True)
class _Nest:
    kernel: LoopKernel
    body: str
    parameters: list[Parameter]


class Nests:
    """Nests in the order of the program, and the function that computes them.

    Attributes:
        nodes: of Inductor, that they compute.
        faults: what a report of the function means.
        last: the last of the scheduler's nodes.
    """

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.faults: list[str] = []
        self.last: Any = None
        self._nests: list[_Nest] = []
        self._passed: dict[tuple[str, str], Parameter] = {}  # by type and value
        self._operations: OrderedSet[str] = OrderedSet()

    @property
    def parameters(self) -> list[Parameter]:
        is_alone = len(self._nests) == 1
        return self._nests[0].parameters if is_alone else list(self._passed.values())

    @property
    def device(self) -> torch.device:
        return self._nests[0].kernel.device

    @property
    def sizes(self) -> list[Any]:
        return [size for nest in self._nests for size in nest.kernel.args.sizevars]

    def takes(self, kernel: LoopKernel, node: Any) -> bool:
        """Return whether the nest of a node may be computed beside these."""
        keys = {parameter.key for parameter in kernel.parameters()}
        return not self._nests or bool(
            self._nests[0].kernel.shares_launches
            and kernel.shares_launches
            and node.ancestors.isdisjoint(self._operations)
            and len(keys | self._passed.keys()) <= _MOST
        )

    def add(self, kernel: LoopKernel, body: str, nodes: Sequence[Any], node: Any) -> None:
        before, parameters = len(self.faults), kernel.parameters()
        number = re.compile(r"(?<=report_fault\(fault, )\d+")
        body = number.sub(lambda found: str(int(found[0]) + before), body)
        self._nests.append(_Nest(kernel, body, parameters))
        for one in parameters:
            known = self._passed.setdefault(one.key, one)
            if known.kind != one.kind:  # what one name of a nest reads and another writes
                self._passed[one.key] = one._replace(kind="b")
        self._operations |= node.get_operation_names()
        self.nodes += nodes
        self.faults += kernel.faults
        self.last = node

    def work(self) -> str:
        """Return how many elements there are, of which a launch makes blocks, for the wrapper."""
        work = [nest.kernel.work() for nest in self._nests]
        threads = self._nests[0].kernel.language.threads
        if len(work) > 1 and threads > 1:  # no block has threads of two nests
            work = [f"-(-({one}) // {threads}) * {threads}" for one in work]
        return " + ".join(work)

    def text(self) -> str:
        language = self._nests[0].kernel.language
        fault = [_FAULT] * bool(self.faults)
        if len(self._nests) == 1:
            (nest,) = self._nests
            head = language.entry.format(name=ENTRY, parameters=_declared(nest.parameters, fault))
            return _function(head, nest.body.splitlines())
        by_blocks = language.shared
        # What macros of the language read, a nest has, too.
        own = language.entry.partition("{name}(")[2].partition("{parameters}")[0].strip(", ")
        own = "int64_t block" if by_blocks else own
        names = {key: f"value{number}" for number, key in enumerate(self._passed)}
        functions: dict[tuple[str, str], str] = {}
        lines = ["int64_t block = BRINGUP_BLOCK;"] * by_blocks
        for nest in self._nests:
            body = nest.body.replace("BRINGUP_BLOCK", "block") if by_blocks else nest.body
            known = f"({_declared(nest.parameters, fault, own)})", body
            name = functions.setdefault(known, f"nest{len(functions)}")
            given = [re.split(r"\W+", one)[-1] for one in own.split(",") if one]
            given += [names[one.key] for one in nest.parameters] + ["fault"] * bool(fault)
            call = f"{name}({', '.join(given)});"
            count = nest.kernel.numel_of(nest.kernel.range_trees[0])
            count = {one.name: names[one.key] for one in nest.parameters}.get(count, count)
            if by_blocks:
                blocks = f"({count} + {language.threads - 1}) / {language.threads}"
                lines += [f"if (block < {blocks}) {{", call, "return;", "}", f"block -= {blocks};"]
            else:
                lines.append(f"if ({count} > 0) {call}")
        texts = [
            _function(f"static void {name}{parameters}", body.splitlines())
            for (parameters, body), name in functions.items()
        ]
        taken = [f"{one.c_type} {names[key]}" for key, one in self._passed.items()]
        head = language.entry.format(name=ENTRY, parameters=", ".join(taken + fault))
        return "".join([*texts, _function(head, lines)])


def _declared(parameters: Sequence[Parameter], fault: list[str], own: str = "") -> str:
    declared = [f"{one.c_type} {one.name}" for one in parameters]
    return ", ".join([*([own] if own else []), *declared, *fault])


def _function(head: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{head} {{", *indented(lines), "}", ""])
