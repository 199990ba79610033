"""Which kernel runs, by the dispatcher's debug dump, which alone says who registered it."""

from __future__ import annotations

import functools
import importlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from bringup import _native
from bringup.errors import DeviceError, did_you_mean


class KernelKind(Enum):
    """What is on a dispatch key of an operator."""

    NATIVE = "kernel"  # of this operator, for this key
    HOST = "host fallback"  # bringup's: the CPU kernel over the device's tensors
    REFUSAL = "refusal"  # bringup's: an error that says why, such as that of quantized tensors
    BACKEND_FALLBACK = "backend fallback"  # for every operator without a kernel on this key
    COMPOSITE_EXPLICIT = "composite explicit"  # made of other operators, autograd apart
    COMPOSITE_IMPLICIT = "composite implicit"  # made of other operators, which autograd sees
    AUTOGRAD = "autograd"  # for all autograd keys
    BATCHING = "batching by decomposition"
    AMBIGUOUS = "ambiguous"  # an implicit composite and a backend's kernel under AutogradOther
    FALLTHROUGH = "fallthrough"  # the key is skipped
    MISSING = "missing"


# What torch's table calls them (OperatorEntry::computeDispatchTableEntryWithDebug).
_KINDS = {
    "kernel": KernelKind.NATIVE, "default backend kernel": KernelKind.COMPOSITE_EXPLICIT,
    "math kernel": KernelKind.COMPOSITE_IMPLICIT, "nested kernel": KernelKind.COMPOSITE_IMPLICIT,
    "autograd kernel": KernelKind.AUTOGRAD, "batched kernel": KernelKind.BATCHING,
    "backend fallback": KernelKind.BACKEND_FALLBACK,
    "ambiguous autogradother": KernelKind.AMBIGUOUS,
}  # fmt: skip
_ROW = re.compile(r"(?P<key>\w+): (?P<skip>fallthrough )?(?P<debug>.*) \[(?P<kind>[a-z ]+)\]")
_PLACE = re.compile(r"registered at (?P<file>.+?):(?P<line>\d+)(?: \(.*\))?")
_REGISTRATION = re.compile(
    r"(?P<key>\w+)(?:\[alias\])?(?P<inactive> \(inactive\))?: (?P<debug>.*) :: .* \[(?P<how>.*)\]"
)
# What is in front of a path that says enough without it: where torch or bringup was built.
_BUILD_FOLDER = re.compile(r"^/.*?/(?=(?:build/)?aten/src/|torch/csrc/|native/torch/)")
_PACKAGES = re.compile(r"^/.*?/site-packages/")
# Where the kit registers kernels that run on the host.
_HOST_FILE = "torch/devices/fallback.cpp"
_REFUSALS_FILE = "torch/devices/layouts.cpp"

# Kernels that end what is known without running them: they compute, or call other operators
# from the top, or leave the rest to Python.
_LAST_KINDS = {
    KernelKind.COMPOSITE_IMPLICIT,
    KernelKind.COMPOSITE_EXPLICIT,
    KernelKind.BATCHING,
    KernelKind.AMBIGUOUS,
    KernelKind.REFUSAL,
    KernelKind.MISSING,
}
_LAST_KEYS = {
    "Python", "PythonDispatcher", "PreDispatch", "Fake", "Functionalize",
    "FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode", "FuncTorchBatched",
    "FuncTorchGradWrapper", "Batched", "BatchedNestedTensor",
}  # fmt: skip


@dataclass(frozen=True)
class DispatchEntry:
    """One row of an operator's table.

    Attributes:
        key: the dispatch key, e.g. "AutogradPrivateUse1".
        kind: what is there.
        file, line: where it was registered: a C++ or Python file as the build that registered it
            named it; None and 0 where torch does not know.
        text: torch's row without the key; "" for a missing kernel.
    """

    key: str
    kind: KernelKind
    file: str | None = None
    line: int = 0
    text: str = ""

    @property
    def where(self) -> str:
        """File and line, or torch's words for the origin; "" for a missing kernel."""
        if self.file is not None:
            return f"{self.file}:{self.line}"
        return self.text.rpartition(" [")[0]

    @property
    def source(self) -> str:
        """Return the same, without the folder in which torch or bringup was built or installed."""
        return _PACKAGES.sub("", _BUILD_FOLDER.sub("", self.where))


@dataclass(frozen=True)
class Registration:
    """A kernel that was registered for the operator, whether or not a later one hides it.

    Attributes:
        key: a dispatch key, or an alias such as "CompositeImplicitAutograd".
        where: file and line, or torch's words.
        active: False where a later registration for the same key hides it.
        unboxed: whether it can be called without boxing its arguments.
    """

    key: str
    where: str
    active: bool
    unboxed: bool


@dataclass(frozen=True)
class DispatchTable:
    """The dispatch table of one operator.

    Attributes:
        operator: with its overload, "aten::add.Tensor".
        schema: in torch's notation; "" for an operator that has kernels and no schema.
        entries: one for each key of torch, those that are asked first first.
        registrations: the kernels of this operator itself, in torch's order.
    """

    operator: str
    schema: str
    entries: tuple[DispatchEntry, ...]
    registrations: tuple[Registration, ...]

    def __getitem__(self, key: str) -> DispatchEntry:
        """Return the entry of a key; `KeyError` where torch has no such key."""
        return self._by_key[key]

    @functools.cached_property
    def _by_key(self) -> Mapping[str, DispatchEntry]:
        return {entry.key: entry for entry in self.entries}

    def groups(self) -> Iterator[tuple[str, DispatchEntry]]:
        """Return neighbours of one kind and origin as one: a text for the keys, and the first
        entry. The keys of PrivateUse1 stay alone, and missing kernels are left out.
        """
        for _, run in itertools.groupby(self.entries, _group):
            first, *others = run
            if first.kind is not KernelKind.MISSING:
                rest = f" to {others[-1].key} ({1 + len(others)})" if others else ""
                yield first.key + rest, first

    def __str__(self) -> str:
        lines = [self.schema or self.operator]
        lines += [f"  {keys:44}{e.kind.value:20}{e.source}" for keys, e in self.groups()]
        return "\n".join(lines)


def _group(entry: DispatchEntry) -> object:
    return entry.key if "PrivateUse1" in entry.key else (entry.kind, entry.where)


def _torch_c() -> Any:
    return importlib.import_module("torch")._C


@functools.cache
def runtime_keys() -> tuple[str, ...]:
    """Return every dispatch key that a kernel can be on, that which is asked first first."""
    return (*key_names(_torch_c()._dispatch_keyset_full()), "Undefined")


def key_names(key_set: object) -> tuple[str, ...]:
    """Return the keys of torch's `DispatchKeySet`, that which is asked first first."""
    inside = str(key_set).partition("(")[2].rpartition(")")[0]
    return tuple(name for name in reversed(inside.split(", ")) if name)


def _require_operator(name: str) -> str:
    """Return the operator's name as torch writes it; raises `DeviceError` where there is none."""
    found = name.removesuffix(".default")
    if _torch_c()._dispatch_dump_table(found):  # a registered operator has rows
        return found
    known = _torch_c()._dispatch_get_all_op_names()
    overloads = [one for one in known if one.partition(".")[0] == found]
    if overloads:
        raise DeviceError(
            f"dispatch table of {name!r}: the operator has the overloads "
            f"{', '.join(sorted(overloads))}: name one"
        )
    hint = did_you_mean(name, known, most=3)
    raise DeviceError(
        f"dispatch table of {name!r}: no operator of this name is registered, expected e.g. "
        f"'aten::add.Tensor'{hint}. Import the package that defines it first"
    )


def dispatch_table(name: str) -> DispatchTable:
    """Return the dispatch table of an operator, as it is now.

    Args:
        name: "aten::add.Tensor"; "aten::linear" or "aten::linear.default" for an overload without
            a name.

    Raises:
        DeviceError: no operator has this name, or torch's table has a row that cannot be read.
    """
    operator = _require_operator(name)
    dump = _torch_c()._dispatch_dump_table(operator)
    found = (_entry(operator, row) for row in dump.splitlines() if row)
    rows = {entry.key: entry for entry in found}
    schema, registrations = _registrations(operator)
    entries = (rows.pop(key, DispatchEntry(key, KernelKind.MISSING)) for key in runtime_keys())
    table = DispatchTable(operator, schema, tuple(entries), registrations)
    if rows:
        raise DeviceError(f"dispatch table of {operator!r}: unknown keys {', '.join(rows)}")
    return table


def _entry(operator: str, row: str) -> DispatchEntry:
    found = _ROW.fullmatch(row)
    kind = found and _KINDS.get(found["kind"])
    if not found or kind is None:
        raise DeviceError(
            f"dispatch table of {operator!r}: torch's row {row!r} cannot be read: this torch is "
            "newer than bringup knows"
        )
    place = _PLACE.fullmatch(found["debug"])
    file, line = (place["file"], int(place["line"])) if place else (None, 0)
    if found["skip"]:
        kind = KernelKind.FALLTHROUGH
    elif file is not None:
        kind = _kind_of_ours(operator, found["key"], file) or kind
    text = row.partition(": ")[2]
    return DispatchEntry(found["key"], kind, file, line, text)


def _kind_of_ours(operator: str, key: str, file: str) -> KernelKind | None:
    """Return what a kernel from the kit's sources is, where torch's word is not enough."""
    if file.endswith(_HOST_FILE):
        composite = key == "PrivateUse1" and _hands_to_out_form(operator)
        return KernelKind.COMPOSITE_EXPLICIT if composite else KernelKind.HOST
    if file.endswith(_REFUSALS_FILE) and key != "SparsePrivateUse1":
        return KernelKind.REFUSAL
    return None


def _hands_to_out_form(operator: str) -> bool:
    """Return whether the fallback leaves it to torch's composite kernel, for its out form."""
    name, _, overload = operator.partition(".")
    found: bool = _native.torch_library("the fallback").devices.hands_to_out_form(name, overload)
    return found


def _registrations(operator: str) -> tuple[str, tuple[Registration, ...]]:
    """Return the schema and the kernels of the operator itself, from torch's other dump."""
    schema, found = "", []
    for row in _torch_c()._dispatch_dump(operator).splitlines():
        if row.startswith("schema: "):
            schema = row.removeprefix("schema: ")
        elif match := _REGISTRATION.fullmatch(row):
            place = _PLACE.fullmatch(match["debug"])
            where = f"{place['file']}:{place['line']}" if place else match["debug"]
            inactive = match["inactive"] is not None
            found.append(Registration(match["key"], where, not inactive, "unboxed" in match["how"]))
    return ("" if schema == "(none)" else schema), tuple(found)


def call_chain(
    table: DispatchTable, key_set: Any, factory_key: str = ""
) -> tuple[DispatchEntry, ...]:
    """Return the kernels that a call with this `DispatchKeySet` passes, outermost first.

    Each kernel above a backend's is taken to call on with the keys below its own, as torch's do.
    One that computes, decomposes or hands over to Python ends the chain; the host fallback is
    followed by the CPU's kernel. `factory_key` is what BackendSelect's kernel adds.
    """
    torch_c = _torch_c()
    chain: list[DispatchEntry] = []
    while True:
        key = key_set.highestPriorityTypeId()
        entry = table[torch_c._dispatch_key_name(key)]
        key_set = key_set.remove(key)  # with those of its functionality for other backends
        if entry.kind is not KernelKind.FALLTHROUGH:
            chain.append(entry)
            if entry.key == "BackendSelect" and factory_key:
                key = torch_c._dispatch_key_parse(factory_key)
                key_set |= torch_c.DispatchKeySet(key)
            elif (
                entry.kind in _LAST_KINDS or entry.key in _LAST_KEYS or entry.key in _backend_keys()
            ):
                return (*chain, *_on_host(table, entry))
        elif entry.key == "Undefined":
            return tuple(chain)


@functools.cache
def _backend_keys() -> frozenset[str]:
    keys = runtime_keys()
    return frozenset(keys[keys.index("BackendSelect") + 1 :])


def _on_host(table: DispatchTable, entry: DispatchEntry) -> tuple[DispatchEntry, ...]:
    if entry.kind is not KernelKind.HOST:
        return ()
    return (table["SparseCPU" if entry.key.startswith("Sparse") else "CPU"],)
