"""Every way to call an operator gives what torch.library gives: for each schema type and each form
of returns, whoever defined it (`kernel_op`, `custom_op`, `Library`, `adopt`), the callable and
`torch.ops` do what a plain `torch.library` registration of the same function does, in value, in the
identity of what is returned, in dtype and in error.

What a definition cannot carry is refused there, by the argument's name.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sweeps.support import FULL, examples
from torch.utils import _pytree

from bringup import jit, ops
from bringup.errors import ContractError, SchemaError
from bringup.ops import _dtypes
from bringup.ops._defaults import default_of

Call = Callable[..., Any]
_numbers = itertools.count()

# --- What one argument may be: its type, defaults that a schema can write, values good and bad.


@dataclass(frozen=True)
class Kind:
    """One schema type beside `Tensor x`.

    Attributes:
        type: as written in a schema.
        defaults: texts of defaults.
        values: what calls pass; those that do not fit are errors on every path.
        in_kernels: whether kernels carry it.
        ours: values that only we refuse, because a function would read past them.
    """

    type: str
    defaults: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()
    in_kernels: bool = True
    ours: tuple[Any, ...] = ()


NUMBERS = (0, -3, 2**40, 2**63, True, 1.5, float("inf"), "a", None, [1], torch.tensor(3))
LISTS = (
    [],
    [1],
    [1, 2],
    (3, 4),
    [True, False],
    [1.5, 2],
    [1, 2, 3],
    5,
    1.5,
    True,
    None,
    "ab",
    [None],
)
KINDS = [
    Kind(
        "Tensor", (), (torch.ones(2), torch.ones(2, dtype=torch.int64), None, 1.0, [torch.ones(2)])
    ),
    Kind("Tensor?", ("None",), (torch.ones(2), None, 2)),
    Kind("Tensor[]", (), ([], [torch.ones(2)], (torch.ones(2), torch.zeros(1)), [None], None, 3)),
    Kind("Tensor?[]", (), ([], [torch.ones(2), None], None, 3), in_kernels=False),
    Kind("int", ("3", "-1"), NUMBERS),
    Kind("int?", ("None", "2"), NUMBERS),
    Kind("SymInt", ("3",), NUMBERS),
    Kind("SymInt?", ("None",), NUMBERS),
    Kind("float", ("0.5", "1e-6"), NUMBERS),
    Kind("float?", ("None", "2.5"), NUMBERS),
    Kind("bool", ("True",), NUMBERS),
    Kind("bool?", ("None", "False"), NUMBERS),
    Kind("int[]", ("[1, 2]",), LISTS),
    Kind("int[]?", ("None",), LISTS),
    Kind("SymInt[]", ("[1]",), LISTS),
    Kind("float[]", ("[1., 2.]",), LISTS),
    Kind("bool[]", ("[True]",), LISTS),
    *(
        Kind(
            f"{element}[2]{optional}",
            ("None",) if optional else defaults,
            LISTS,
            ours=([], [1], [1, 2, 3], *([[None]] * (element == "bool"))),
        )
        for element, defaults in (
            ("int", ("3", "[1, 2]")),
            ("SymInt", ("[1, 2]",)),
            ("float", ("[1., 2.]",)),
            ("bool", ("[True, False]",)),
        )
        for optional in ("", "?")
    ),
    Kind("str", ('"a"', "'é'"), ("", "b", "ü", 1, None, b"c")),
    Kind("str?", ("None", '"a"'), ("b", None, 2)),
    Kind("str[]", (), (["a"], [], "a", [1]), in_kernels=False),
    Kind("Scalar", ("1", "1.5"), (*NUMBERS, 1j), in_kernels=False),
    Kind("Scalar?", ("None",), (1, 1.5, None, "a"), in_kernels=False),
    Kind("complex", (), (1j, 1.0, "a"), in_kernels=False),
    Kind("ScalarType", ("long", "float"), (torch.float16, torch.bool, 1, "float", None)),
    Kind("ScalarType?", ("None", "long"), (torch.float16, None, "float")),
    Kind("Layout", ("strided",), (torch.strided, torch.sparse_coo, 0, None), in_kernels=False),
    Kind("Layout?", ("None",), (torch.strided, None), in_kernels=False),
    Kind("MemoryFormat", ("contiguous_format",), (torch.channels_last, None), in_kernels=False),
    Kind("MemoryFormat?", ("None",), (torch.preserve_format, None), in_kernels=False),
    Kind("Device", ('"cpu"',), (torch.device("cpu"), "meta", 1.5, None), in_kernels=False),
    Kind("Device?", ("None",), (torch.device("meta"), None), in_kernels=False),
    Kind("Generator?", ("None",), (None, torch.Generator(), 3), in_kernels=False),
]

# The kernel notes the bytes of what it is given in its output: presence, then up to seven numbers.
NOTE = """#include "bringup/kernel.h"
#include <cstring>
// One of: T_TENSOR, T_TENSORS, T_NUMBER (int64_t), T_REAL, T_TEXT, T_NUMBERS, T_REALS.
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const auto* given = args[1];
  auto* out = static_cast<double*>(static_cast<const DLTensor*>(args[2])->data);
  for (int i = 0; i < 8; ++i) out[i] = 0;
  if (given == nullptr) return 0;
  out[0] = 1;
#if defined(T_TENSOR)
  const auto* tensor = static_cast<const DLTensor*>(given);
  out[1] = tensor->ndim;
  out[2] = tensor->dtype.bits;
  out[3] = tensor->ndim > 0 ? tensor->shape[0] : -1;
#elif defined(T_NUMBER)
  out[1] = static_cast<double>(*static_cast<const int64_t*>(given));
#elif defined(T_REAL)
  out[1] = *static_cast<const double*>(given);
#elif defined(T_TEXT)
  const auto* text = static_cast<const char*>(given);
  out[1] = static_cast<double>(std::strlen(text));
  out[2] = static_cast<unsigned char>(text[0]);
#else
  const auto* list = static_cast<const bringup_list*>(given);
  out[1] = static_cast<double>(list->size);
  for (int64_t i = 0; i < list->size && i < 6; ++i) {
#if defined(T_TENSORS)
    out[2 + i] = static_cast<const DLTensor* const*>(list->data)[i]->dtype.bits;
#elif defined(T_REALS)
    out[2 + i] = static_cast<const double*>(list->data)[i];
#else
    out[2 + i] = static_cast<double>(static_cast<const int64_t*>(list->data)[i]);
#endif
  }
#endif
  return 0;
}
"""
MACROS = {
    "Tensor": "T_TENSOR",
    "Tensor[]": "T_TENSORS",
    "int": "T_NUMBER",
    "SymInt": "T_NUMBER",
    "bool": "T_NUMBER",
    "ScalarType": "T_NUMBER",
    "float": "T_REAL",
    "str": "T_TEXT",
    "float[]": "T_REALS",
}


def base(kind: Kind) -> str:
    """The type without `?` and length."""
    return kind.type.rstrip("?").replace("[2]", "[]")


def note(value: Any) -> torch.Tensor:
    """What the kernel notes, in Python."""
    noted = [0.0] * 8
    if value is None:
        return torch.tensor(noted, dtype=torch.float64)
    noted[0] = 1.0
    if isinstance(value, torch.Tensor):
        noted[1:4] = [value.dim(), 8 * value.element_size(), value.shape[0] if value.dim() else -1]
    elif isinstance(value, str):
        noted[1:3] = [len(value.encode()), (value.encode() or b"\0")[0]]
    elif isinstance(value, (list, tuple)):
        noted[1] = len(value)
        for i, item in enumerate(value[:6]):
            noted[2 + i] = _number(item)
    else:
        noted[1] = _number(value)
    return torch.tensor(noted, dtype=torch.float64)


def _number(value: Any) -> float:
    if isinstance(value, torch.Tensor):
        return 8 * value.element_size()
    if isinstance(value, torch.dtype):
        return DTYPES.index(value)
    if isinstance(value, complex):
        return value.real + 100 * value.imag
    if isinstance(value, (int, float)):
        return float(value)
    return float(len(str(value)))


DTYPES = list(_dtypes.DTYPES.values())

# --- The same operator by everybody.


@dataclass
class Operators:
    """One schema registered five times.

    Attributes:
        oracle: the plain torch.library registration.
        ours: who made it -> the paths to it.
    """

    oracle: Call
    ours: dict[str, list[Call]]


@contextlib.contextmanager
def registered(
    signature: str, function: Call, fake: Call, kernel: Call | None
) -> Iterator[Operators]:
    """The operators of a signature such as `(Tensor x, int k) -> Tensor`.

    `kernel(name)` defines the kernel operator, None where there is none.
    """
    namespace = f"sweep_calls_{next(_numbers)}"
    with contextlib.ExitStack() as stack:
        plain = torch.library.Library(namespace, "FRAGMENT")
        stack.callback(plain._destroy)
        plain.define(f"oracle{signature}")
        plain.impl("oracle", function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{namespace}::oracle", fake, lib=plain)
        packet = getattr(torch.ops, namespace)
        ours: dict[str, list[Call]] = {}

        made = ops.custom_op(f"{namespace}::custom", function, schema=signature)
        stack.callback(made.undefine)
        made.register_fake(fake)
        ours["custom_op"] = [made, made.overload, packet.custom]

        library = ops.Library(namespace, "FRAGMENT")
        stack.callback(library._destroy)
        library.define(f"library{signature}")
        library.impl("library", function, "CompositeExplicitAutograd")
        ops.register_fake(f"{namespace}::library", fake)
        ours["Library"] = [packet.library, packet.library.default]

        handle = ops.adopt(f"{namespace}::oracle")
        stack.callback(handle.undefine)
        ours["adopt"] = [handle]

        if kernel is not None:
            operator = kernel(f"{namespace}::kernel")
            stack.callback(operator.undefine)
            ours["kernel_op"] = [operator, operator.overload, packet.kernel]
        yield Operators(packet.oracle, ours)


def outcome(call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result, or the exception; instead of a result that was given, which one it is."""
    copied_args, copied_kwargs = _pytree.tree_map_only(
        torch.Tensor, torch.clone, (tuple(args), kwargs)
    )
    leaves = _pytree.tree_leaves((copied_args, copied_kwargs))
    try:
        result = call(*copied_args, **copied_kwargs)
    except Exception as error:
        return error

    def named(tensor: torch.Tensor) -> Any:
        same = [i for i, leaf in enumerate(leaves) if leaf is tensor]
        return (
            ("argument", same)
            if same
            else (tensor.dtype, tensor.shape, tensor.stride(), tensor.tolist())
        )

    written = [leaf.tolist() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return type(result), _pytree.tree_map_only(torch.Tensor, named, result), written


def family(error: Exception) -> str:
    """What counts of an error: torch words the same misfit as either of these."""
    if isinstance(error, ContractError):
        return "contract"
    return (
        "misfit"
        if isinstance(error, (RuntimeError, TypeError, ValueError, OverflowError))
        else type(error).__name__
    )


def compare(
    operators: Operators,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    ours_refuse: bool,
    counts: Counter[str],
) -> None:
    """Every path does what the oracle does; a list of the wrong length is our error only."""
    expected = outcome(operators.oracle, args, kwargs)
    for who, paths in operators.ours.items():
        answers = [outcome(path, args, kwargs) for path in paths]
        counts["calls"] += len(paths)
        where = f"{who}{args}{kwargs}"
        for answer in answers:
            if who == "kernel_op" and _is_none_refused(answer):
                continue  # torch hands None on for a Tensor; a kernel would read it
            if ours_refuse and who != "adopt":
                assert isinstance(answer, ContractError), f"{where}: {answer}"
            elif isinstance(expected, Exception):
                assert isinstance(answer, Exception), (
                    f"{where}: {answer}, torch raises {expected!r}"
                )
                assert family(answer) == family(expected), f"{where}: {answer!r}, not {expected!r}"
            else:
                assert not isinstance(answer, Exception), f"{where}: {answer!r}, not {expected}"
                assert _equal(answer, expected), f"{where}: {answer}, not {expected}"


def _is_none_refused(answer: Any) -> bool:
    return isinstance(answer, ContractError) and "is None, expected a tensor" in str(answer)


def _equal(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)  # NaN and nested results alike


# --- Types.


def kernel_of(kind: Kind, signature: str) -> Call:
    def define(name: str) -> Any:
        return ops.kernel_op(
            f"{name}{signature}",
            source=jit.Source(text=NOTE, name="note.cpp"),
            outputs=ops.empty(8, dtype=torch.float64),
            checks=ops.kernel_checks(),
            macros={MACROS.get(base(kind), "T_NUMBERS"): "1"},
        )

    return define


def forms(kind: Kind) -> list[str]:
    """The declarations of the second argument: positional and keyword-only, with each default."""
    declared = [f"{kind.type} k", *(f"{kind.type} k={default}" for default in kind.defaults)]
    return [*declared, f"*, {declared[-1]}"]


def calls(kind: Kind, form: str) -> list[tuple[tuple[Any, ...], dict[str, Any], bool]]:
    """Calls with positional, keyword and default arguments, and some that do not fit; the last
    member: whether only we refuse it.
    """
    x = torch.ones(3)
    keyword_only = form.startswith("*")
    made: list[tuple[tuple[Any, ...], dict[str, Any], bool]] = [
        ((x,), {}, False),
        ((x, 1, 2), {}, False),
        ((x,), {"unknown": 1}, False),
        ((), {"k": kind.values[0]}, False),
    ]
    for value in kind.values:
        ours = any(value is o or (type(value) is list and value == o) for o in kind.ours)
        if not keyword_only:
            made.append(((x, value), {}, ours))
        made.append(((x,), {"k": value}, ours))
        made.append(((), {"k": value, "x": x}, ours))
    return made


def noting(default: Any) -> Call:
    """The operator in Python; the dispatcher leaves defaults out."""

    def function(x: torch.Tensor, *rest: Any, **kwargs: Any) -> torch.Tensor:
        given = (*rest, *kwargs.values())
        return note(given[0] if given else default)

    return function


def _fake_note(x: torch.Tensor, *rest: Any, **kwargs: Any) -> torch.Tensor:
    return x.new_empty(8, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.type for kind in KINDS])
def test_every_type_is_taken_as_torch_library_takes_it(
    kind: Kind, sweep_counts: Counter[str]
) -> None:
    chosen = forms(kind) if FULL else forms(kind)[-2:-1]
    for form in chosen:
        signature = f"(Tensor x, {form}) -> Tensor"
        default = default_of(torch._C.parse_schema(f"f{signature}").arguments[1])
        kernel = kernel_of(kind, signature) if kind.in_kernels else None
        with registered(signature, noting(default), _fake_note, kernel) as operators:
            sweep_counts["operators"] += 1 + len(operators.ours)
            for args, kwargs, ours_refuse in calls(kind, form):
                compare(operators, args, kwargs, ours_refuse, sweep_counts)


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if not k.in_kernels], ids=[k.type for k in KINDS if not k.in_kernels]
)
def test_a_type_that_kernels_do_not_carry_is_refused_by_name(kind: Kind) -> None:
    with pytest.raises(SchemaError, match=r"argument 'k' has type .*, which the kernel ABI"):
        kernel_of(kind, f"(Tensor x, {kind.type} k) -> Tensor")("sweep_calls::refused")


# --- Forms of returns.

DOUBLE = jit.Source(
    name="double.cpp",
    text="""#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const auto* x = static_cast<const DLTensor*>(args[FROM]);
  const auto* y = static_cast<const DLTensor*>(args[INTO]);
  int64_t n = 1;
  for (int i = 0; i < x->ndim; ++i) n *= x->shape[i];
  for (int64_t i = 0; i < n; ++i) {
    static_cast<float*>(y->data)[i] = static_cast<const float*>(x->data)[i] * 2;
#ifdef ALSO
    static_cast<float*>(static_cast<const DLTensor*>(args[ALSO])->data)[i] = i;
#endif
  }
  return 0;
}
""",
)


@dataclass(frozen=True)
class Form:
    """One form of arguments that are written, and of returns.

    Attributes:
        signature: the schema without a name.
        function: the operator in Python.
        fake: its fake.
        macros: of the kernel; None where kernels have no such form.
        outputs: the kernel's new results.
        args, kwargs: of a call.
        plain: whether plain torch.library compiles it.
    """

    signature: str
    function: Call
    fake: Call
    macros: dict[str, Any] | None
    outputs: tuple[Any, ...] = ()
    args: tuple[Any, ...] = (torch.arange(3.0),)
    kwargs: tuple[tuple[str, Any], ...] = ()
    plain: bool = False


def _twice_(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2)


def _twice_for_nothing(x: torch.Tensor) -> None:
    x.mul_(2)


def _into(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(x * 2)


def _swap(x: torch.Tensor, y: torch.Tensor) -> Any:
    y.copy_(x * 2)
    x.copy_(torch.arange(3.0))
    return y, x


LIKE = ops.empty_like("x")
X, Y = torch.arange(3.0) + 1, torch.zeros(3)
FORMS = {
    "new": Form("(Tensor x) -> Tensor", lambda x: x * 2, torch.empty_like,
                {"FROM": 0, "INTO": 1}, (LIKE,), plain=True),
    "two new": Form("(Tensor x) -> (Tensor, Tensor)",
                    lambda x: (x * 2, torch.arange(3.0)),
                    lambda x: (torch.empty_like(x), torch.empty_like(x)),
                    {"FROM": 0, "INTO": 1, "ALSO": 2}, (LIKE, LIKE), plain=True),
    "list": Form("(Tensor x) -> Tensor[]", lambda x: [x * 2, x + 1],
                 lambda x: [torch.empty_like(x), torch.empty_like(x)], None, plain=True),
    "in place": Form("(Tensor(a!) x) -> Tensor(a!)", _twice_, lambda x: x,
                     {"FROM": 0, "INTO": 0}),
    "in place, nothing": Form("(Tensor(a!) x) -> ()", _twice_for_nothing,
                              lambda x: None, {"FROM": 0, "INTO": 0}, plain=True),
    "out": Form("(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", _into, lambda x, *, out: out,
                {"FROM": 0, "INTO": 1}, args=(X,), kwargs=(("out", Y),)),
    "out by position": Form("(Tensor x, Tensor(a!) out) -> Tensor(a!)",
                            lambda x, out: out.copy_(x * 2), lambda x, out: out,
                            {"FROM": 0, "INTO": 1}, args=(X, Y)),
    "two written": Form("(Tensor(a!) x, Tensor(b!) y) -> (Tensor(b!), Tensor(a!))", _swap,
                        lambda x, y: (y, x), {"FROM": 0, "INTO": 1, "ALSO": 0}, args=(X, Y)),
    "written list": Form("(Tensor x, Tensor(a!)[] ys) -> Tensor(a!)[]",
                         lambda x, ys: [y.mul_(2) for y in ys], lambda x, ys: list(ys), None,
                         args=(X, [X, Y])),
    "written and new": Form("(Tensor(a!) x) -> Tensor",
                            lambda x: x.mul_(2).clone(), torch.empty_like, None, plain=True),
    "view": Form("(Tensor(a) x) -> Tensor(a)", lambda x: x[:1], lambda x: x[:1], None),
}  # fmt: skip


def kernel_of_form(form: Form) -> Call | None:
    if form.macros is None:
        return None

    def define(name: str) -> Any:
        return ops.kernel_op(
            f"{name}{form.signature}",
            source=DOUBLE,
            outputs=form.outputs,
            checks=[ops.kernel_checks()],
            macros=form.macros,
        )

    return define


def contexts() -> dict[str, Callable[[Call, Form], Call]]:
    """Ways of running a call: each gives a function of the call's tensors."""

    def compiled(call: Call, form: Form) -> Call:
        torch._dynamo.reset()
        return torch.compile(lambda *a, **k: call(*a, **k), fullgraph=True, backend="aot_eager")

    def exported(strict: bool) -> Callable[[Call, Form], Call]:
        def build(call: Call, form: Form) -> Call:
            class Model(torch.nn.Module):
                def forward(self, *args: Any, **kwargs: Any) -> Any:
                    return call(*args, **kwargs)

            args, kwargs = _pytree.tree_map_only(
                torch.Tensor, torch.clone, (form.args, dict(form.kwargs))
            )
            program = torch.export.export(Model(), args, kwargs, strict=strict)
            return program.run_decompositions().module()

        return build

    made = {"compiled": compiled, "exported": exported(False), "exported strictly": exported(True)}
    return made if FULL else {"compiled": compiled}


def values_of(call: Call, form: Form) -> Any:
    """What a call gives and leaves in its arguments; not which tensor is which."""
    args, kwargs = _pytree.tree_map_only(torch.Tensor, torch.clone, (form.args, dict(form.kwargs)))
    result = call(*args, **kwargs)
    return _pytree.tree_map_only(torch.Tensor, torch.Tensor.tolist, (result, args, kwargs))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_returns_is_that_of_torch_library(
    form: Form, sweep_counts: Counter[str]
) -> None:
    with registered(form.signature, form.function, form.fake, kernel_of_form(form)) as operators:
        compare(operators, form.args, dict(form.kwargs), False, sweep_counts)
        sweep_counts["operators"] += 1 + len(operators.ours)
        with torch.inference_mode():
            compare(operators, form.args, dict(form.kwargs), False, sweep_counts)
        with torch.profiler.profile():
            compare(operators, form.args, dict(form.kwargs), False, sweep_counts)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_compiles_and_exports_as_eager(form: Form, sweep_counts: Counter[str]) -> None:
    if "(a) " in form.signature:
        pytest.skip("a view of somebody else's: torch compiles none without its source")
    with registered(form.signature, form.function, form.fake, kernel_of_form(form)) as operators:
        expected = values_of(operators.oracle, form)
        for who, paths in operators.ours.items():
            if who == "adopt" and not (form.plain and FULL):
                continue  # torch's own operator, which torch does not compile in these forms
            chosen = paths if FULL else paths[:1]
            for path, (name, context) in itertools.product(chosen, contexts().items()):
                got = values_of(context(path, form), form)
                sweep_counts["compiled or exported"] += 1
                assert _plain(got) == _plain(expected), f"{who}, {name}: {got}, not {expected}"


def _plain(result: Any) -> Any:
    """Lists for tuples: an exported program gives them as it likes."""
    return _pytree.tree_leaves(result)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_runs_over_batches(form: Form, sweep_counts: Counter[str]) -> None:
    """One call a sample is the oracle; a batch of nothing keeps the shapes."""
    if "(a) " in form.signature or form.function is FORMS["two new"].function:
        pytest.skip("no rule for views; a constant result has no batch to compare")

    def batch(size: int) -> Any:
        return _pytree.tree_map_only(
            torch.Tensor,
            lambda t: (
                torch.stack([t + i for i in range(size)]) if size else t.new_empty(0, *t.shape)
            ),
            (form.args, dict(form.kwargs)),
        )

    with registered(form.signature, form.function, form.fake, kernel_of_form(form)) as operators:
        for who, paths in operators.ours.items():
            if who in ("adopt", "Library"):
                continue  # no rule unless one is registered
            for path, size in itertools.product(paths, (0, 1, 3)):
                args, kwargs = batch(size)

                def run(a: Any, k: Any, path: Call = path) -> Any:
                    result = path(*a, **k)
                    return a if result is None else result  # vmap returns tensors only

                result = torch.vmap(run)(args, kwargs)
                sweep_counts["batches"] += 1
                again_args, again_kwargs = batch(size)
                for i in range(size):
                    one_args, one_kwargs = _pytree.tree_map_only(
                        torch.Tensor, lambda t, i=i: t[i], (again_args, again_kwargs)
                    )
                    expected = form.function(*one_args, **one_kwargs)
                    expected = one_args if expected is None else expected
                    got = _pytree.tree_map_only(torch.Tensor, lambda t, i=i: t[i], result)
                    assert _tensors(got) == _tensors(expected), f"{who} {size} {i}"
                assert _tensors((args, kwargs)) == _tensors((again_args, again_kwargs)), who
                if size == 0 and form.signature.endswith("Tensor"):
                    assert result.shape == (0, 3)


def _tensors(value: Any) -> list[Any]:
    return [t.tolist() for t in _pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_callable_is_pickled_and_copied_by_name(
    form: Form, sweep_counts: Counter[str]
) -> None:
    with registered(form.signature, form.function, form.fake, kernel_of_form(form)) as operators:
        for who, paths in operators.ours.items():
            if who == "Library":
                continue  # has no callable of its own
            sweep_counts["pickled"] += 1
            for same in (pickle.loads(pickle.dumps(paths[0])), copy.deepcopy(paths[0])):
                assert same is paths[0]


# --- Several arguments at once, drawn.

SIGNATURE = (
    "(Tensor x, int n=1, float[2] pair=[1., 2.], *, bool flag=False, str s='a', ScalarType? d=None,"
    " int[2] size=3) -> Tensor"
)
ARGUMENTS: dict[str, list[Any]] = {
    "n": [0, -7, True, 1.5, None, 2**63],
    "pair": [[1.0, 2.0], (3, 4), 2.5, [1.0], [], "ab"],
    "flag": [True, False, 1, None],
    "s": ["", "é", 3],
    "d": [None, torch.float16, "x"],
    "size": [4, [5, 6], (7,), [1, 2, 3], 1.5],
}


def _all(x: torch.Tensor, n: Any = 1, pair: Any = (1.0, 2.0), *, flag: Any = False, s: Any = "a",
         d: Any = None, size: Any = (3, 3)) -> torch.Tensor:  # fmt: skip
    given = (n, pair, flag, s, d, size)
    return torch.stack([note(value) for value in given])


@examples(150, 3000)
@given(data=st.data())
def _drawn(operators: Operators, counts: Counter[str], data: Any) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(ARGUMENTS)), unique=True))
    chosen = {name: data.draw(st.sampled_from(ARGUMENTS[name]), label=name) for name in names}
    args: list[Any] = [torch.ones(3)]
    for name in ("n", "pair"):
        if name not in chosen or not data.draw(st.booleans()):
            break
        args.append(chosen.pop(name))
    bound = dict(zip(("x", "n", "pair"), args, strict=False)) | chosen
    wrong_length = any(
        isinstance(bound.get(name), (list, tuple)) and len(bound[name]) != 2
        for name in ("pair", "size")
    )
    misfits = isinstance(outcome(operators.oracle, args, chosen), Exception)
    compare(operators, args, chosen, wrong_length and not misfits, counts)


def test_calls_with_many_arguments_are_those_of_torch_library(sweep_counts: Counter[str]) -> None:
    def fake(x: torch.Tensor, *rest: Any, **kwargs: Any) -> torch.Tensor:
        return x.new_empty(6, 8, dtype=torch.float64)

    with registered(SIGNATURE, _all, fake, None) as operators:
        _drawn(operators, sweep_counts)
