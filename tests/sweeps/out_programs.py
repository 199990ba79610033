"""Calls that write results into given tensors, on the device and on the CPU: prints, as JSON, what
differs in a part of torch's operators, also in the bytes around the results.

One process for each mode of the device, forked behind the imports, which take longer than a part.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tests.sweeps.support import part, sized
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bringup import devices, errors, graphs
from bringup.conformance._operators import UNINITIALISED
from bringup.conformance._opinfo import all_operators
from bringup.conformance._samples import Mover, is_strided, outcome, tensors

MODES = ("visible", "isolated", "kernels", "isolated kernels")
"""The host sees device memory, or not; without and with the kernels of drivers/sim_ops."""

GUARD = 8  # elements before and behind what is given
SAMPLES = sized(1, 3)  # of each operator
CALLS = 4  # of torch's registry, in each sample
LARGEST = 4096  # elements of a result

aten = torch.ops.aten


@dataclass(frozen=True)
class Call:
    """A call of a form that makes its results, and the form that writes given ones."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Tensor, ...]
    into: Callable[..., Any]  # (results, *args, **kwargs)
    exact: bool  # whether its values are the CPU's: it draws no numbers and fills its result


# ------------------------------------------------------------------------------------- the calls


def out_form(overload: Any) -> Any:
    """The overload of the same operator that writes its results into given tensors, or None."""
    wanted = [(a.name, str(a.type)) for a in overload._schema.arguments]
    packet = overload.overloadpacket
    for name in packet.overloads():
        form = getattr(packet, name)
        outs = [a for a in form._schema.arguments if a.is_out]
        rest = [(a.name, str(a.type)) for a in form._schema.arguments if not a.is_out]
        if outs and rest == wanted and all(str(a.type) == "Tensor" for a in outs):
            return form
    return None


class Registry(TorchDispatchMode):
    """Notes the calls that torch's registry has an out form for, one for each overload."""

    def __init__(self, seen: set[str]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.draws = False
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        self.draws |= torch.Tag.nondeterministic_seeded in func.tags
        form = None if func.name() in self._seen else out_form(func)
        if form is not None and len(self.calls) < CALLS:
            self._seen.add(func.name())
            names = [a.name for a in form._schema.arguments if a.is_out]

            def into(results: tuple[Tensor, ...], *args: Any, **kwargs: Any) -> Any:
                return form(*args, **kwargs, **dict(zip(names, results, strict=True)))

            exact = torch.Tag.nondeterministic_seeded not in func.tags
            exact = exact and form.name() not in UNINITIALISED and "empty" not in form.name()
            found = tuple(tensors(made))
            if len(found) == len(names):
                self.calls.append(Call(form.name(), *copied((args, kwargs, found)), into, exact))
        return made


def copied(value: Any) -> Any:
    """`value` with clones of its tensors, which keep their strides."""
    return _pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), value)


def calls_of(op: Any, seen: set[str]) -> Iterator[Call]:
    """The public call of an operator and those that its samples make in turn."""
    dtype = torch.float32 if torch.float32 in op.supported_dtypes("cpu") else torch.int64
    if dtype not in op.supported_dtypes("cpu"):
        return
    torch.manual_seed(0)
    for sample in itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES):
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        if not is_strided((args, kwargs)):
            continue
        with Registry(seen) as registry:
            made, error = outcome(lambda: op(*args, **kwargs))  # noqa: B023
        if error is not None:
            continue
        calls = list(registry.calls)
        results = tuple(tensors(made))
        if op.supports_out and results:
            single = isinstance(made, Tensor)

            def into(results: tuple[Tensor, ...], *args: Any, **kwargs: Any) -> Any:
                return op.op(*args, **kwargs, out=results[0] if single else results)  # noqa: B023

            exact = not registry.draws and "empty" not in op.name
            name = f"torch.{op.full_name}"
            calls.insert(0, Call(name, *copied((args, kwargs, results)), into, exact))
        yield from (call for call in calls if usable(call))


def usable(call: Call) -> bool:
    small = all(0 < r.numel() <= LARGEST and not r.is_conj() for r in call.results)
    return small and is_strided((call.args, call.kwargs, call.results))


# --------------------------------------------------------------------------------- where they go


def pattern(count: int, dtype: torch.dtype) -> Tensor:
    return (torch.arange(count) % 5 + (0 if dtype is torch.bool else 40)).to(dtype)


def inside(like: Tensor, dtype: torch.dtype | None = None, step: int = 1) -> Tensor:
    """A tensor of the shape of `like` in the midst of a larger one."""
    base = pattern(like.numel() * step + 2 * GUARD, dtype or like.dtype)
    strides = torch.empty(like.shape, device="meta").stride()
    return base.as_strided(like.shape, [s * step for s in strides], GUARD)


def of_dtype(dtype: torch.dtype) -> Callable[[Call], Any]:
    def given(call: Call) -> Any:
        if any(r.dtype is dtype for r in call.results):
            return None
        return call.args, tuple(inside(r, dtype) for r in call.results)

    return given


def each(make: Callable[[Tensor], Tensor]) -> Callable[[Call], Any]:
    return lambda call: (call.args, tuple(make(r) for r in call.results))


def place_of_input(call: Call) -> int | None:
    """The first argument whose memory can hold the first result."""
    for i, arg in enumerate(call.args):
        if isinstance(arg, Tensor) and arg.dtype is call.results[0].dtype and arg.numel():
            return i
    return None


def in_input(first: int | None, empty: bool = False) -> Callable[[Call], Any]:
    """Results within an argument's storage, `first` elements behind the argument's own first one;
    None is the argument itself.
    """

    def given(call: Call) -> Any:
        i = place_of_input(call)
        # An argument that is resized before it is read has what lies behind it, whatever that is.
        if i is None or (first is None and call.args[i].numel() < call.results[0].numel()):
            return None
        args = list(call.args)
        large = max(args[i].numel(), *(r.numel() for r in call.results))
        base = pattern(large + 3 * GUARD, args[i].dtype)
        args[i] = base[GUARD : GUARD + args[i].numel()].view(args[i].shape).copy_(args[i])
        if first is None:
            return tuple(args), (args[i], *(inside(r) for r in call.results[1:]))
        begin = GUARD + first
        result = call.results[0]
        out = base[begin:begin] if empty else base[begin : begin + result.numel()]
        out = out if empty else out.view(result.shape)
        return tuple(args), (out, *(inside(r) for r in call.results[1:]))

    return given


def in_one_storage(step: int, empty: bool) -> Callable[[Call], Any]:
    """Several results in one storage, `step` bytes apart; 0: behind one another."""

    def given(call: Call) -> Any:
        if len(call.results) < 2:
            return None
        sizes = [-(-r.nbytes // 16) * 16 for r in call.results]
        base = torch.arange(sum(sizes) + 64, dtype=torch.uint8)
        outs, begin = [], 16
        for result, size in zip(call.results, sizes, strict=True):
            end = begin if empty else begin + result.nbytes
            part = base[begin:end].view(result.dtype)
            outs.append(part if empty else part.view(result.shape))
            begin += step or size
        return call.args, tuple(outs)

    return given


def one_twice(call: Call) -> Any:
    first = inside(call.results[0])
    same = len({(r.dtype, r.shape) for r in call.results}) == 1
    return (call.args, (first,) * len(call.results)) if same and len(call.results) > 1 else None


def at_the_end(result: Tensor) -> Tensor:
    base = pattern(2 * GUARD, result.dtype)
    return base[-2:-2]


KINDS: dict[str, Callable[[Call], Any]] = {
    "slice": each(inside),
    "strided": each(lambda r: inside(r, step=2)),
    "empty": each(lambda r: inside(r).flatten()[:0]),
    "empty at the end": each(at_the_end),
    "too large": each(lambda r: pattern(r.numel() + 3 + 2 * GUARD, r.dtype)[GUARD:-GUARD]),
    "overlapping itself": each(lambda r: inside(r).as_strided(r.shape, [0] * r.dim(), GUARD)),
    **{
        str(dtype).removeprefix("torch."): of_dtype(dtype)
        for dtype in (
            torch.float64,
            torch.float32,
            torch.float16,
            torch.int64,
            torch.uint8,
            torch.complex64,
        )
    },
    "the input": in_input(None),
    "over the input": in_input(1),
    "empty in the input": in_input(1, empty=True),
    "empty behind the input": in_input(-GUARD + 1, empty=True),
    "one storage": in_one_storage(0, empty=False),
    "one storage, empty": in_one_storage(8, empty=True),
    "one twice": one_twice,
}


# ------------------------------------------------------------------------------------ comparing


def bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def mark(mask: torch.UntypedStorage, result: Tensor) -> None:
    """Sets the bytes of `mask` that `result` has in its own storage."""
    width = result.element_size()
    sizes = [*result.shape, width]
    strides = [*(s * width for s in result.stride()), 1]
    bytes_of(mask).as_strided(sizes, strides, result.storage_offset() * width).fill_(1)


def close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, 1e-3, 1e-3, equal_nan=True)


def place(tensor: Tensor) -> tuple[Any, ...]:
    """Where a tensor's elements are."""
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype


def told(call: Call, mover: Mover, given: Any, there: Any, former: dict[int, Tensor]) -> str | None:
    """What is not the CPU's in the results and in all memory of the call, which was `former`."""
    outs = given[1]
    for here, out in zip(outs, there[1], strict=True):
        if (made := place(out)) != (wanted := place(here)):
            return f"out is {made}, not {wanted}"
        if out.untyped_storage().nbytes() != here.untyped_storage().nbytes():
            return f"{out.untyped_storage().nbytes()} bytes, not {here.untyped_storage().nbytes()}"
        if call.exact and not close(out.cpu(), here):
            return f"{out.cpu().flatten()[:8]}, not {here.flatten()[:8]}"
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors(given)}
    for storage in [storage for key, storage in storages.items() if key in former]:
        mask = torch.UntypedStorage(storage.nbytes()).fill_(0)
        for out in outs:
            if out.untyped_storage()._cdata == storage._cdata:
                mark(mask, out)
        before = former[storage._cdata]
        around = bytes_of(mask)[: len(before)] == 0
        moved = bytes_of(mover._storages[storage._cdata]).cpu()[: len(before)]
        # Some of the CPU's kernels write beside their results, too.
        allowed = (before, bytes_of(storage)[: len(before)])
        if not any(torch.equal(moved[around], one[around]) for one in allowed):
            return "the bytes around the result"
    return None


def compare(call: Call, kind: str, captured: bool, strict: bool) -> str | None:
    """What is not the CPU's in one call; "-" where it cannot be made. `strict`: only what the
    CPU refuses may be refused where memory overlaps.
    """
    torch.manual_seed(0)
    args, kwargs = copied((call.args, call.kwargs))
    try:
        given = KINDS[kind](replace(call, args=args, kwargs=kwargs))
    except RuntimeError:  # no such view of these sizes
        return "-"
    if given is None:
        return "-"
    args, outs = given
    mover = Mover("npu")
    there = mover((args, outs))
    kwargs_there = mover(kwargs)
    written = tensors(given if call.exact else outs)  # others draw into their arguments, too
    former = {t.untyped_storage()._cdata: bytes_of(t.untyped_storage()).clone() for t in written}
    _, wanted = outcome(lambda: call.into(outs, *args, **kwargs))
    if captured:
        if wanted is not None:
            return "-"
        graph = graphs.CapturedGraph()
        try:
            with warnings.catch_warnings(), torch.no_grad(), graphs.capture(graph):
                warnings.simplefilter("ignore")
                call.into(there[1], *there[0], **kwargs_there)
        except errors.CaptureError:
            return "-"
        except RuntimeError as failure:
            if not strict and kind in OVERLAPPING:
                return "-"
            return f"{failure!r:.200}, not None"
        error = outcome(graph.replay)[1]
    else:
        error = outcome(lambda: call.into(there[1], *there[0], **kwargs_there))[1]
    torch.npu.synchronize()
    if not strict and kind in OVERLAPPING and error:
        return None
    if type(error) is not type(wanted):
        return f"{error!r:.200}, not {wanted!r:.200}"
    if wanted is not None:
        return None
    # Some of the CPU's kernels are wrong in memory that overlaps, or is not dense.
    right = all(close(o, r.to(o.dtype)) for o, r in zip(outs, call.results, strict=True))
    call = replace(call, exact=call.exact and right)
    return told(call, mover, (args, outs), there, former)


OVERLAPPING = (
    "overlapping itself",
    "the input",
    "over the input",
    "empty in the input",
    "empty behind the input",
    "one storage, empty",
    "one twice",
)
CAPTURED = ("slice", "empty", "float64", "float16", "the input")


ALWAYS = ["cat", "cumsum", "nn.functional.nll_loss", "gather"]
"""Operators of every run: those of which faults were known, one for each of their causes."""

FATAL_ON_CPU = {
    ("aten::stack.out", "overlapping itself"),
    ("torch.nn.functional.avg_pool3d", "the input"),
    ("aten::max_pool2d_with_indices_backward.grad_input", "the input"),
    ("aten::max_unpool3d.out", "the input"),
}
"""The CPU's kernel reads or writes what is not its own."""

TORCHS_OWN = {
    "torch.mode", "aten::mode.values", "aten::rrelu_with_noise.out",
    "aten::log_sigmoid_forward.output",
}  # fmt: skip
"""torch itself refuses the first on devices that it does not know; the third never resizes; the CPU
gives the last one's buffer dense strides, whatever it was given.
"""


def sweep(
    names: list[str], counts: Counter[str], place: Callable[[str], None], strict: bool
) -> Iterator[str]:
    """All that differs in these operators."""
    seen: set[str] = set()
    for op in all_operators():
        if op.full_name not in names:
            continue
        for number, call in enumerate(calls_of(op, seen)):
            for kind, captured in [*((k, False) for k in KINDS), *((k, True) for k in CAPTURED)]:
                if (captured and number) or (call.name, kind) in FATAL_ON_CPU:
                    continue
                if call.name in TORCHS_OWN:
                    continue
                title = f"{op.full_name}: {call.name}, {kind}{', captured' * captured}"
                place(title)
                words = compare(call, kind, captured, strict)
                if words == "-":
                    continue
                counts["captured calls" if captured else "calls"] += 1
                if words is not None:
                    yield f"{title}: {words}"


def run(mode: str, names: list[str], file: Path, place: Callable[[str], None]) -> None:
    """Sweeps in one mode; appends what differs to the file, a line each, and the counts at last."""
    if "isolated" in mode:
        os.environ["BRINGUP_SIM_ISOLATED"] = "1"
    torch.set_num_threads(1)
    devices.load_driver("sim")
    if "kernels" in mode:
        import bringup_sim_ops

        bringup_sim_ops.load()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    with file.open("a") as report:
        for words in sweep(names, counts, place, strict="kernels" not in mode):
            print(json.dumps(words), file=report, flush=True)
        print(json.dumps(counts), file=report)


def in_mode(mode: str, names: list[str], file: Path) -> None:
    """The same in processes of their own, another one behind an operator that ends it."""
    at = mmap.mmap(-1, 4096)  # shared: says where a process was that ended

    def place(title: str) -> None:
        at[:512] = title.encode()[:512].ljust(512)

    while names:
        process = os.fork()
        if process == 0:
            run(mode, names, file, place)
            os._exit(0)
        status = os.waitpid(process, 0)[1]
        if status == 0:
            return
        last = at[:512].decode().strip()
        with file.open("a") as report:
            print(json.dumps(f"{last}: ended the process, status {status}"), file=report)
        names = names[names.index(last.partition(": ")[0]) + 1 :]


def main() -> None:
    """Runs the modes named first, on this run's part of the operators or on those named behind."""
    folder, modes, *chosen = sys.argv[1:]
    names = [op.full_name for op in all_operators() if not op.name.startswith("jiterator")]
    names = [name for name in names if name in (chosen or part(names, ALWAYS))]
    for mode in modes.split(","):
        if os.fork() == 0:
            in_mode(mode, names, Path(folder) / f"{mode}.jsonl")
            os._exit(0)
    for _ in modes.split(","):
        os.wait()


if __name__ == "__main__":
    main()
