"""The checks that need no gradients: each returns, or raises, mostly `Failed`, `NotApplicable`."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.utils import _pytree

from bringup import devices
from bringup._differences import not_close, same_bytes
from bringup.errors import BringupError, ContractError, KernelError, first_line
from bringup.ops.schema.operator_facts import Facts
from bringup.ops.validation.samples import Sample, resized

_GUARD = 64  # elements beside an argument that nothing may write
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_REFUSAL_WORDS = ("contiguous", "stride", "layout", "memory format")


class Failed(Exception):
    """The operator is wrong; the text says how."""


class NotApplicable(Exception):
    """The check says nothing of this operator and this sample; the text says why."""


@dataclass(frozen=True)
class Subject:
    """The operator under check."""

    name: str  # `namespace::name`
    overload: Any  # the operator in `torch.ops`
    fast: Any  # its callable, None where only the operator is known
    facts: Facts  # of its schema
    # Makes a call of the callable one of the operator, where they differ.
    flatten: Callable[[Any, Any], tuple[list[Any], dict[str, Any]]] | None

    def flat(self, sample: Sample) -> Sample:
        if self.flatten is None:
            return sample
        args, kwargs = self.flatten(sample.args, sample.kwargs)
        return Sample(tuple(args), kwargs)


CheckFunction = Callable[[Subject, Sample], None]


def run(call: Callable[..., Any], subject: Subject, sample: Sample) -> list[Any]:
    """Return what a call of a copy returns and writes: the leaves, in order."""
    copy = sample.copied()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        result = call(*copy.args, **copy.kwargs)
    written = copy.written(subject.facts) if subject.facts.written else []
    return [*_pytree.tree_leaves(result), *written]


def compare(got: list[Any], expected: list[Any], what: str, **tolerance: Any) -> None:
    if len(got) != len(expected):
        raise Failed(f"{what}: {len(got)} results, expected {len(expected)}")
    for index, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        if not (isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)):
            if ours != theirs:
                raise Failed(f"{what}: result {index}: {ours!r}, expected {theirs!r}")
            continue
        if text := not_close(ours, theirs, check_device=False, **tolerance):
            raise Failed(f"{what}: result {index}: {text[:300]}")


def refusals(error: BaseException) -> bool:
    """Return whether an operator says itself it does not take an argument's layout or shape."""
    if isinstance(error, (ContractError, KernelError)):
        return True
    return any(word in str(error).lower() for word in _REFUSAL_WORDS)


def _same_as_plain(subject: Subject, variants: Iterable[tuple[str, Sample]], what: str) -> None:
    """Check that each variant gives what its contiguous copy gives, or is refused."""
    refused = what
    checked = False
    for name, variant in variants:
        plain = variant.mapped(lambda t: t.detach().clone(memory_format=torch.contiguous_format))
        try:
            expected = run(subject.overload, subject, plain)
        except Exception as error:
            refused = f"{name}: refused even when contiguous: {error}"
            continue
        try:
            got = run(subject.overload, subject, variant)
        except Exception as error:
            if not refusals(error):
                raise Failed(f"{name}: {type(error).__name__}: {error}") from error
            refused = f"{name}: refused: {error}"
            continue
        compare(got, expected, name)
        checked = True
    if not checked:
        raise NotApplicable(refused)


def _opcheck(subject: Subject, sample: Sample, test: str, *, gradients: bool = False) -> None:
    copy = sample.copied()
    if gradients:
        for tensor in copy.tensors():
            tensor.requires_grad_(tensor.dtype.is_floating_point)
    found = torch.library.opcheck(
        subject.overload, copy.args, dict(copy.kwargs), test_utils=test, raise_exception=False
    )
    if found[test] != "SUCCESS":
        raise Failed(" ".join(str(found[test]).split())[:400])


def schema(subject: Subject, sample: Sample) -> None:
    """Check what the schema says of writes and aliases (opcheck)."""
    _opcheck(subject, sample, "test_schema")


def autograd_registration(subject: Subject, sample: Sample) -> None:
    """Check that gradients are registered where every tracer sees them (opcheck)."""
    if not any(tensor.dtype.is_floating_point for tensor in sample.tensors()):
        raise NotApplicable("no floating-point argument")
    if subject.facts.written:
        raise NotApplicable("it writes its arguments")
    _opcheck(subject, sample, "test_autograd_registration", gradients=True)


def fake(subject: Subject, sample: Sample) -> None:
    """Check that the fake has the sizes, strides and dtypes of the real results (opcheck)."""
    _opcheck(subject, sample, "test_faketensor")


def aot_dispatch(subject: Subject, sample: Sample) -> None:
    """Check that tracing ahead of time with symbolic sizes gives the eager results (opcheck)."""
    _opcheck(subject, sample, "test_aot_dispatch_dynamic")


def hidden_writes(subject: Subject, sample: Sample) -> None:
    """Check that only declared arguments are written, and no memory beside any."""
    written = {id(tensor) for tensor in sample.written(subject.facts)}
    guarded: list[tuple[torch.Tensor, torch.Tensor, bool]] = []

    def guard(tensor: torch.Tensor) -> torch.Tensor:
        buffer = torch.zeros(tensor.numel() + 2 * _GUARD, dtype=tensor.dtype)
        view = buffer[_GUARD : _GUARD + tensor.numel()].view(tensor.shape).copy_(tensor.detach())
        guarded.append((buffer, buffer.clone(), id(tensor) in written))
        return view

    given = sample.mapped(guard)
    subject.overload(*given.args, **given.kwargs)
    for index, (now, before, declared) in enumerate(guarded):
        for part, where in (
            (slice(0, _GUARD), "before"),
            (slice(len(now) - _GUARD, None), "behind"),
        ):
            if not same_bytes(now[part], before[part]):
                raise Failed(f"the memory {where} tensor {index} is written")
        if not declared and not same_bytes(now, before):
            raise Failed(
                f"tensor {index} of the arguments is written, but the schema does not say so; "
                "write Tensor(a!)"
            )


def aliases(subject: Subject, sample: Sample) -> None:
    """Check that no result shares memory with an argument or another result."""
    if subject.facts.returns_aliases:
        raise NotApplicable("the schema declares aliases")
    copy = sample.copied()
    results = _pytree.tree_leaves(subject.overload(*copy.args, **copy.kwargs))
    owners = {_storage(t): f"tensor {i} of the arguments" for i, t in enumerate(copy.tensors())}
    for index, result in enumerate(results):
        if not isinstance(result, torch.Tensor) or result.untyped_storage().nbytes() == 0:
            continue
        if (owner := owners.get(_storage(result))) is not None:
            raise Failed(f"result {index} shares its memory with {owner}; return a copy")
        owners[_storage(result)] = f"result {index}"


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def strides(subject: Subject, sample: Sample) -> None:
    if not any(tensor.dim() and tensor.numel() > 1 for tensor in sample.tensors()):
        raise NotApplicable("no argument has strides that matter")
    _same_as_plain(
        subject,
        (("transposed", sample.mapped(_transposed)), ("every second", sample.mapped(_stepped))),
        "refused",
    )


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 2:
        return tensor
    return tensor.detach().transpose(-1, -2).contiguous().transpose(-1, -2)


def _stepped(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 0:
        return tensor
    plain = tensor.detach()
    return torch.stack([plain, torch.zeros_like(plain)], -1)[..., 0]


def offsets(subject: Subject, sample: Sample) -> None:
    """Compare arguments that begin inside their storage with others."""

    def offset(tensor: torch.Tensor) -> torch.Tensor:
        plain = tensor.detach().reshape(-1)
        return torch.cat([torch.zeros(3, dtype=plain.dtype), plain])[3:].view(tensor.shape)

    _same_as_plain(subject, [("offset by 3", sample.mapped(offset))], "refused")


def expanded(subject: Subject, sample: Sample) -> None:
    def expand(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or tensor.numel() == 0:
            return tensor
        return tensor.detach()[:1].clone().expand_as(tensor)

    changed = sample.mapped_inputs(subject.facts, expand)
    if all(0 not in tensor.stride() for tensor in changed.tensors()):
        raise NotApplicable("no argument that is only read can be expanded")
    _same_as_plain(subject, [("expanded", changed)], "refused")


def channels_last(subject: Subject, sample: Sample) -> None:
    if not any(tensor.dim() == 4 for tensor in sample.tensors()):
        raise NotApplicable("no argument has four dimensions")

    def last(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() != 4:
            return tensor
        return tensor.detach().contiguous(memory_format=torch.channels_last)

    _same_as_plain(subject, [("channels-last", sample.mapped(last))], "refused")


def fake_shapes(subject: Subject, sample: Sample) -> list[Any]:
    """Return shape and dtype of what the fake gives, for each leaf; other leaves as they are."""
    mode = FakeTensorMode()
    given = sample.copied().mapped(mode.from_tensor)
    with mode:
        leaves = _pytree.tree_leaves(subject.overload(*given.args, **given.kwargs))
    return [_meta(leaf) for leaf in leaves]


def _meta(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return f"{list(leaf.shape)} {leaf.dtype}"


def _agrees_with_fake(subject: Subject, variant: Sample, name: str) -> list[Any] | None:
    try:
        expected: list[Any] | Exception = fake_shapes(subject, variant)
    except Exception as error:
        expected = error
    try:
        got = run(subject.overload, subject, variant)
    except Exception as error:
        if isinstance(expected, Exception) or isinstance(error, (ContractError, KernelError)):
            return None
        raise Failed(
            f"{name}: the fake gives {expected}, the call raises {type(error).__name__}: {error}"
        ) from error
    if isinstance(expected, Exception):
        if isinstance(expected, DynamicOutputShapeException):
            return None
        raise Failed(f"{name}: the call is fine, the fake raises {expected}") from expected
    real = [_meta(leaf) for leaf in got[: len(expected)]]
    if real != expected:
        raise Failed(f"{name}: the fake gives {expected}, the call {real}")
    return got


def zero_size(subject: Subject, sample: Sample) -> None:
    """Require the fake's shape for no elements, or a refusal in the operator's words."""
    variants = list(resized(sample, times=0))
    if not variants:
        raise NotApplicable("no argument has elements")
    taken = [_agrees_with_fake(subject, variant, name) for name, variant in variants]
    if all(result is None for result in taken):
        raise NotApplicable("tensors without elements are refused")


def dtypes(subject: Subject, sample: Sample) -> None:
    """Require near values in every floating-point dtype that the fake takes."""
    floats = {t.dtype for t in sample.tensors() if t.dtype.is_floating_point}
    if not floats:
        raise NotApplicable("no floating-point argument")
    base = max(floats, key=lambda dtype: dtype.itemsize)
    taken = 0
    for dtype in _DTYPES:
        variant = sample.mapped(lambda t, d=dtype: _cast(t, d))  # type: ignore[misc]
        got = _agrees_with_fake(subject, variant, str(dtype))
        if got is None:
            continue
        taken += 1
        wide = variant.mapped(lambda t: _cast(t, base))
        expected = run(subject.overload, subject, wide)
        eps = max(torch.finfo(dtype).eps, torch.finfo(base).eps)
        # dtypes of results were compared with the fake's
        compare(got, expected, str(dtype), rtol=8 * eps, atol=8 * eps, check_dtype=False)
    if not taken:
        raise NotApplicable("it takes no other dtype")


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.detach().to(dtype) if tensor.dtype.is_floating_point else tensor


def compiled_call(subject: Subject, *, dynamic: bool) -> Callable[..., Any]:
    """Return the compiled operator in its own code object, which counts recompiles."""
    overload = subject.overload

    def call(*args: Any, **kwargs: Any) -> Any:
        return overload(*args, **kwargs)

    fresh = types.FunctionType(call.__code__.replace(), call.__globals__, closure=call.__closure__)
    made: Callable[..., Any] = torch.compile(
        fresh, backend="aot_eager", fullgraph=True, dynamic=dynamic
    )
    return made


def _run_compiled(call: Callable[..., Any], subject: Subject, sample: Sample) -> list[Any]:
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        return run(call, subject, sample)


def compiled(subject: Subject, sample: Sample) -> None:
    """Require the eager results when compiled, without a graph break."""
    got = _run_compiled(compiled_call(subject, dynamic=False), subject, sample)
    compare(got, run(subject.overload, subject, sample), "compiled")


def dynamic_shapes(subject: Subject, sample: Sample) -> None:
    """Require that the fake and one compilation follow other sizes."""
    call = compiled_call(subject, dynamic=True)
    compare(_run_compiled(call, subject, sample), run(subject.overload, subject, sample), "dynamic")
    for name, variant in resized(sample, times=2):
        expected = _agrees_with_fake(subject, variant, name)
        if expected is not None:
            compare(_run_compiled(call, subject, variant), expected, f"compiled {name}")


def vmap(subject: Subject, sample: Sample) -> None:
    if subject.facts.written:
        raise NotApplicable("it writes its arguments")
    tensors = sample.tensors()
    second = [t * 0.5 if t.dtype.is_floating_point else t for t in tensors]
    batch = [torch.stack([t.detach(), s.detach()]) for t, s in zip(tensors, second, strict=True)]

    def call(*given: torch.Tensor) -> Any:
        rest = iter(given)
        sub = sample.mapped(lambda _: next(rest))
        return subject.overload(*sub.args, **sub.kwargs)

    loop = [_pytree.tree_leaves(call(*tensors)), _pytree.tree_leaves(call(*second))]
    if not all(isinstance(leaf, torch.Tensor) for leaf in loop[0]):
        raise NotApplicable("a result is no tensor")
    if [leaf.shape for leaf in loop[0]] != [leaf.shape for leaf in loop[1]]:
        raise NotApplicable("the shape of a result hangs on values")
    if not loop[0]:
        raise NotApplicable("it returns nothing")
    got = _pytree.tree_leaves(torch.vmap(call)(*batch))
    compare(got, [torch.stack(pair) for pair in zip(*loop, strict=True)], "vmap")


def cpu_and_npu(subject: Subject, sample: Sample) -> None:
    if devices.loaded() is None:
        raise NotApplicable("no driver is loaded; devices.load_driver('sim') loads the simulator")
    device = torch.device(torch._C._get_privateuse1_backend_name())
    try:
        got = run(subject.overload, subject, sample.copied().mapped(lambda t: t.to(device)))
    except NotImplementedError as error:
        raise NotApplicable(f"no kernel on {device}: {first_line(error)}") from None
    expected = run(subject.overload, subject, sample)
    if moved := [i for i, t in enumerate(got) if isinstance(t, torch.Tensor) and t.is_cpu]:
        raise Failed(f"result {moved[0]} of tensors on {device} is on cpu")
    compare([t.cpu() if isinstance(t, torch.Tensor) else t for t in got], expected, str(device))


def fast_and_slow(subject: Subject, sample: Sample) -> None:
    """Compare values and errors of the callable and of torch.ops."""
    if subject.fast is None:
        raise NotApplicable("only the operator of torch.ops was given")

    def slow(*args: Any, **kwargs: Any) -> Any:
        flat = subject.flat(Sample(args, kwargs))
        return subject.overload(*flat.args, **flat.kwargs)

    flat = subject.flat(sample)
    count = len(subject.overload._schema.returns) and len(
        _pytree.tree_leaves(subject.overload(*flat.copied().args, **flat.copied().kwargs))
    )
    for name, variant in _calls(sample):
        fast_result, slow_result = (_attempt(call, variant, count) for call in (subject.fast, slow))
        if isinstance(fast_result, list) and isinstance(slow_result, list):
            compare(fast_result, slow_result, name, rtol=0, atol=0)
        elif _words(fast_result) != _words(slow_result):
            raise Failed(
                f"{name}: the callable gives {_words(fast_result)}, torch.ops {_words(slow_result)}"
            )


def _calls(sample: Sample) -> Iterable[tuple[str, Sample]]:
    yield "the sample", sample
    yield "on meta", sample.mapped(lambda t: t.detach().to("meta"))
    yield "one dimension more", sample.mapped(lambda t: t.detach().unsqueeze(0))
    yield "as float16", sample.mapped(lambda t: _cast(t, torch.float16))
    yield "texts for tensors", sample.mapped(lambda _: "x")
    if sample.args:
        yield "without the first argument", Sample(sample.args[1:], sample.kwargs)


def _attempt(call: Callable[..., Any], sample: Sample, count: int) -> list[Any] | Exception:
    copy = sample.copied()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            result = call(*copy.args, **copy.kwargs)
    except Exception as error:
        return error
    # The callable may return written arguments too; they are compared as arguments.
    leaves = [*(_pytree.tree_leaves(result)[:count] if count else []), *copy.tensors()]
    return [_meta(x) if isinstance(x, torch.Tensor) and x.is_meta else x for x in leaves]


def _words(outcome: list[Any] | Exception) -> str:
    """Return an error as it counts: ours with its text, torch's by its class."""
    if isinstance(outcome, BringupError):
        return f"{type(outcome).__name__}: {outcome}"
    return type(outcome).__name__ if isinstance(outcome, Exception) else "results"


CHECKS: dict[str, CheckFunction] = {
    "schema": schema, "autograd registration": autograd_registration, "fake": fake,
    "aot dispatch": aot_dispatch, "hidden writes": hidden_writes, "aliases": aliases,
    "strides": strides, "offsets": offsets, "expanded": expanded, "channels-last": channels_last,
    "zero-size": zero_size, "dtypes": dtypes, "compile": compiled, "dynamic shapes": dynamic_shapes,
    "vmap": vmap, "cpu and npu": cpu_and_npu, "fast and slow": fast_and_slow,
}  # fmt: skip
