"""Templates: macros from dtypes, layouts, choices and buckets, and entries of every form."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.jit.support import Call, run

from bringup import jit
from bringup.errors import CompileError

SCALE = """
#include "bringup/params.h"
#ifndef BONUS
#define BONUS 0
#endif
struct Scale { bringup_params head; T* out; const T* x; int64_t n; double factor; };
extern "C" int32_t run(uint32_t, void*, const Scale* p) {
  for (int64_t i = 0; i < p->n; ++i) p->out[i] = T(p->x[i] * p->factor) + BONUS;
  return 0;
}
"""
ITEMS = "ptr(out), ptr(x), numel(x), factor"


def scale(**options: Any) -> jit.Template:
    given: dict[str, Any] = {"text": SCALE, "name": "scale.cpp", "dtypes": {"T": "x"}}
    return jit.Template(**{**given, "params": ITEMS, **options})


def call(n: int = 3, dtype: str = "float32") -> dict[str, Any]:
    """The arguments of a call of `scale`."""
    return {"x": np.arange(n, dtype=dtype), "factor": 2.0, "out": np.zeros(n, dtype=dtype)}


def kernel(template: jit.Template, **arguments: Any) -> jit.Binary:
    return template.compile(jit.params(template, **arguments))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_the_dtype_of_a_tensor_becomes_a_c_type(dtype: str) -> None:
    """Templates from typed params."""
    arguments = call(dtype=dtype)
    run(kernel(scale(), **arguments), *arguments.values())
    assert arguments["out"].tolist() == [0, 2, 4]


def test_another_shape_or_scalar_is_the_same_binary() -> None:
    """Shapes and scalars are run-time values."""
    template = scale()
    small, large = (jit.params(template, **call(n)) for n in (3, 5000))
    other = jit.params(template, **{**call(), "factor": -1.5})
    assert small.key == large.key == other.key
    assert template.compile(small) == template.compile(large)


def test_crossing_a_declared_bucket_is_another_binary() -> None:
    """A bucket is the only way in which a shape chooses a binary."""
    template = scale(buckets={"BONUS": "numel(x) >= 4"})
    below, above = call(3), call(4)
    run(kernel(template, **below), *below.values())
    run(kernel(template, **above), *above.values())
    assert below["out"].tolist() == [0, 2, 4]
    assert above["out"].tolist() == [1, 3, 5, 7]
    assert kernel(template, **below) != kernel(template, **above)
    assert kernel(template, **above) == kernel(template, **call(5000))


@pytest.mark.parametrize(("count", "is_bonus"), [(3, True), (5, True), (4, False)])
def test_bucket_of_either_condition_holds_where_one_of_them_does(
    count: int, is_bonus: bool
) -> None:
    template = scale(buckets={"BONUS": "numel(x) == 3 or numel(x) == 5"})
    arguments = call(count)
    run(kernel(template, **arguments), *arguments.values())
    assert arguments["out"].tolist() == [2 * i + is_bonus for i in range(count)]


C_SOURCE = """
#include "bringup/params.h"
typedef struct { bringup_params head; float* out; const float* x; int64_t n; double factor; } Scale;
RETURNS run(uint32_t blocks, void* stream, const void* params) {
  const Scale* p = params;
  (void)blocks; (void)stream;
  for (int64_t i = 0; i < p->n; ++i) p->out[i] = (float)(p->x[i] * p->factor);
  RETURN;
}
OPTIONAL
"""
CAN_IMPLEMENT = """
const char* can_implement(const void* params) {
  return ((const Scale*)params)->n > 3 ? "more than three elements" : NULL;
}
"""


def c_template(returns: str = "int32_t", optional: str = "") -> jit.Template:
    ending = "return 0" if returns == "int32_t" else "return"
    text = C_SOURCE.replace("RETURNS", returns).replace("RETURN", ending)
    return jit.Template(text=text.replace("OPTIONAL", optional), name="scale.c", params=ITEMS)


@pytest.mark.parametrize("returns", ["int32_t", "void"])
def test_a_c_source_is_a_template_too(returns: str) -> None:
    arguments = call()
    run(kernel(c_template(returns), **arguments), *arguments.values())
    assert arguments["out"].tolist() == [0, 2, 4]


def test_c_may_define_can_implement() -> None:
    arguments = call(4)
    with_check = kernel(c_template(optional=CAN_IMPLEMENT), **arguments)
    run(with_check, *arguments.values())  # it is asked by whoever calls, not by the entry
    exported = with_check.path.read_bytes()
    assert b"bringup_can_implement" in exported


ASCENDC = """
#include <stdint.h>
extern "C" RETURNS aclrtlaunch_scale(uint32_t block_dim, void* stream, OUT out, const float* x,
                                     int32_t n, float factor) {
  const uint32_t more = stream != nullptr ? 1000 : block_dim;
  for (int32_t i = 0; i < n; ++i) ((float*)out)[i] = x[i] * factor + more;
  RETURN;
}
"""


@pytest.mark.parametrize("out", ["uint8_t*", "uint64_t", "void*"])
@pytest.mark.parametrize("returns", ["uint32_t", "void"])
def test_an_ascendc_entry_gets_its_items_as_it_declares_them(out: str, returns: str) -> None:
    ending = "return 0" if returns == "uint32_t" else "return"
    text = ASCENDC.replace("RETURNS", returns).replace("RETURN", ending).replace("OUT", out)
    template = jit.Template(
        text=text, name="scale.cpp", entry="scale", abi="ascendc", params=ITEMS, blocks=8
    )
    arguments = call()
    run(kernel(template, **arguments), *arguments.values())
    assert arguments["out"].tolist() == [8, 10, 12]


def test_an_args_entry_is_compiled_as_it_is() -> None:
    text = """
    #include "bringup/kernel.h"
    BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
      const bringup::View<const T, 1> x(args[0]);
      const bringup::View<T, 1> out(args[2]);
      for (int64_t i = 0; i < x.size(0); ++i) out(i) = T(x(i) * bringup::scalar<double>(args[1]));
      return 0;
    }
    """
    template = jit.Template(text=text, name="scale.cpp", abi="args", dtypes={"T": "x"})
    arguments = call(dtype="int64")
    binary = kernel(template, **arguments)
    run(binary, *arguments.values())
    assert (binary.entry, arguments["out"].tolist()) == ("run", [0, 2, 4])


EVERY_ITEM = """
#include "bringup/params.h"
struct All {
  bringup_params head;
  int64_t* out;
  const int64_t* lengths;
  int64_t size, last, stride, numel, ndim, count, here, missing, none_size, flag, number;
  const char* word;
  void* stream;
};
extern "C" void run(uint32_t blocks, void*, const All* p) {
  const int64_t values[] = {p->size, p->last, p->stride, p->numel, p->ndim, p->count, p->here,
                            p->missing, p->none_size, p->flag, p->number, p->lengths[1], p->word[1],
                            p->stream == nullptr, blocks, p->head.struct_size == sizeof *p,
                            p->head.version};
  for (unsigned i = 0; i < sizeof values / sizeof *values; ++i) p->out[i] = values[i];
}
"""


def test_every_item_of_the_language_arrives() -> None:
    template = jit.Template(
        text=EVERY_ITEM,
        name="all.cpp",
        params="ptr(out), ptr(lengths), size(x,0), size(x,-1), stride(x, 0), numel(x), ndim(x), "
        "len(lengths), has(x), has(bias), size(bias,0), flag, number, word, stream",
        blocks="size(x,0)",
    )
    arguments = {
        "x": np.zeros((2, 3), dtype="float32"),
        "bias": None,
        "lengths": [5, 6, 7],
        "flag": True,
        "number": -4,
        "word": "ab",
        "out": np.zeros(17, dtype="int64"),
    }
    params = jit.params(template, **arguments)
    run(template.compile(params), *arguments.values())
    assert arguments["out"].tolist() == [
        *(2, 3, 3, 6, 2, 3, 1, 0, 0, 1, -4, 6, ord("b"), 1, 2, 1, 1)
    ]
    assert [field.value for field in params.fields[2:13]] == [2, 3, 3, 6, 2, 3, 1, 0, 0, True, -4]


def test_workspace_is_there_for_the_run_that_asked_for_it() -> None:
    """The size comes from run-time values."""
    text = SCALE.replace(
        "  return 0;",
        "  p->out[0] = T(p->head.workspace != nullptr) + T(p->head.workspace_size);\n  return 0;",
    )
    text += 'extern "C" uint64_t workspace_size(const Scale* p) { return p->n > 3 ? p->n : 0; }'
    results = []
    for n in (2, 64):
        arguments = call(n)
        run(kernel(scale(text=text), **arguments), *arguments.values())
        results.append(arguments["out"][0])
    assert results == [0, 65]


def test_a_workspace_that_cannot_be_had_is_a_failure_in_words() -> None:
    text = SCALE + 'extern "C" uint64_t workspace_size(const void*) { return 1000; }'
    arguments = call()
    attempt = Call()
    context = attempt.context()
    context.workspace = type(context.workspace)(lambda _ctx, _size: None)
    attempt.context = lambda: context  # type: ignore[method-assign]
    assert attempt.run(kernel(scale(text=text), **arguments).kernel_id, *arguments.values()) == 1
    assert attempt.message == "there is no memory left for its workspace of 1000 bytes"


def test_a_file_and_the_headers_beside_it_are_found_and_watched(tmp_path: Path) -> None:
    (tmp_path / "scale.cpp").write_text('#include "bonus.h"\n' + SCALE)
    (tmp_path / "bonus.h").write_text("#define BONUS 1\n")
    template = jit.Template(tmp_path / "scale.cpp", dtypes={"T": "x"}, params=ITEMS)
    arguments = call()
    first = kernel(template, **arguments)
    run(first, *arguments.values())
    assert arguments["out"].tolist() == [1, 3, 5]
    (tmp_path / "bonus.h").write_text("#define BONUS 2\n")
    second = kernel(template, **arguments)
    (tmp_path / "scale.cpp").write_text('#include "bonus.h"\n// changed\n' + SCALE)
    assert len({first.key, second.key, kernel(template, **arguments).key}) == 3


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    template = jit.Template(tmp_path / "gone.cpp", params=ITEMS)
    with pytest.raises(FileNotFoundError, match=r"no such kernel source.*gone\.cpp"):
        kernel(template, **call())


def test_the_same_template_in_another_folder_is_the_same_binary(tmp_path: Path) -> None:
    keys = set()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "scale.cpp").write_text(SCALE)
        template = jit.Template(tmp_path / folder / "scale.cpp", dtypes={"T": "x"}, params=ITEMS)
        keys.add(kernel(template, **call()).key)
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"dtypes": ["x"]}, r"dtypes=\['x'\]: expected a mapping from macros"),
        ({"params": ["ptr(x)"]}, r"params=\['ptr\(x\)'\]: expected one text of items"),
        ({"tiles": [1]}, r"tiles=\[1\]: expected a list of sets of macros"),
        ({"tiles": {"TILE": 1}}, r"tiles=\{'TILE': 1\}: expected a list of sets"),
    ],
)
def test_an_argument_of_another_type_is_named(wrong: dict[str, Any], expected: str) -> None:
    with pytest.raises(TypeError, match=rf"jit\.Template 'scale\.cpp': {expected}"):
        scale(**wrong)


def test_errors_of_the_compiler_point_into_the_template() -> None:
    broken = scale(text="\n\nint broken = ;\n" + SCALE)
    with pytest.raises(CompileError, match=r"scale\.cpp:3:\d+: error") as caught:
        kernel(broken, **call())
    assert "    3 | int broken = ;" in str(caught.value)  # there is no file to quote it from


def test_a_kernel_that_is_cleared_before_it_is_loaded_is_built_again(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    """As by another process, between compile and load."""
    params = jit.params(scale(macros={"OF_THIS_TEST": 1}), **call())  # not loaded by another
    cleared: list[Any] = []
    compile_ = jit.Template.compile

    def compile_and_clear(*given: Any, **options: Any) -> jit.Binary:
        binary = compile_(*given, **options)
        cleared.append(jit.cache().clear())
        return binary

    monkeypatch.setattr(jit.Template, "compile", compile_and_clear)
    assert params.template.load(params) > 0
    assert [len(done.removed) for done in cleared] == [1, 0]
    assert len(cleared[1].in_use) == 1


def test_a_parameter_struct_of_another_size_is_refused_by_the_compiler() -> None:
    with pytest.raises(CompileError, match="the kernel's parameter struct is not bringup_params"):
        kernel(scale(params=ITEMS + ", numel(x)"), **call())


# One declaration of a template at a time is changed, or one property of the call.
BASE: dict[str, Any] = {
    "text": "// nothing is compiled here",
    "name": "t.cpp",
    "dtypes": {"T": "x"},
    "layouts": {"LAYOUT": "x"},
    "choices": {"ACT": ("act", "relu", "gelu"), "FLAG": "flag"},
    "buckets": {"BIG": "size(x,0) > 8"},
    "params": "ptr(out), ptr(x)",
    "kernel_kind": "cube",
    "tiles": [{"TILE": 16}, {"TILE": 32}],
    "macros": {"CONSTANT": 1},
    "flags": ["-O2"],
}
CALL: dict[str, Any] = {
    "x": np.zeros((4, 5), dtype="float32"),
    "act": "relu",
    "flag": False,
    "out": np.zeros(1, dtype="float32"),
}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text": ({"text": "// something else"}, {}),
    "entry": ({"entry": "start"}, {}),
    "abi": ({"abi": "ascendc"}, {}),
    "kind": ({"kind": "device"}, {}),
    "params": ({"params": "ptr(x), ptr(out)"}, {}),
    "blocks": ({"blocks": 2}, {}),
    "kernel_kind": ({"kernel_kind": "mix"}, {}),
    "tiles": ({"tiles": [{"TILE": 64}]}, {}),
    "macros": ({"macros": {"CONSTANT": 2}}, {}),
    "flags": ({"flags": ["-O1"]}, {}),
    "dtype": ({}, {"x": np.zeros((4, 5), dtype="float64")}),
    "layout": ({}, {"x": np.zeros((5, 4), dtype="float32").T}),
    "strided": ({}, {"x": np.zeros((4, 10), dtype="float32")[:, ::2]}),
    "choice": ({}, {"act": "gelu"}),
    "flag": ({}, {"flag": True}),
    "bucket": ({}, {"x": np.zeros((9, 5), dtype="float32")}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_decides_the_binary_changes_the_key(change: str) -> None:
    """Each of these alone is another key."""
    declared, given = CHANGES[change]
    before = jit.params(jit.Template(**BASE), **CALL)
    after = jit.params(jit.Template(**{**BASE, **declared}), **{**CALL, **given})
    assert before.key != after.key


def test_what_does_not_decide_the_binary_leaves_the_key_alone() -> None:
    template = jit.Template(**BASE)
    before = jit.params(template, **CALL)
    same = {
        "other shape": np.zeros((8, 7), dtype="float32"),
        "padded rows": np.zeros((4, 16), dtype="float32")[:, :5],
        "offset": np.zeros((6, 5), dtype="float32")[2:],
    }
    keys = {name: jit.params(template, **{**CALL, "x": x}).key for name, x in same.items()}
    assert keys == dict.fromkeys(same, before.key)
    assert before.with_tile(1).key != before.key


def test_parameters_print_themselves() -> None:
    template = jit.Template(**{**BASE, "params": "ptr(x), size(x,0), act"})
    params = jit.params(template, **CALL)
    address = CALL["x"].ctypes.data
    assert str(params) == (
        f"t.cpp {params.key}\n"
        "  ACT=relu\n  BIG=0\n  BRINGUP_KERNEL_KIND=BRINGUP_KERNEL_KIND_CUBE\n  CONSTANT=1\n"
        "  FLAG=0\n  LAYOUT=BRINGUP_LAYOUT_ROW\n  T=float\n  TILE=16\n"
        f"  ptr(x) = {address}\n  size(x,0) = 4\n  act = relu"
    )
    assert re.fullmatch("[0-9a-f]{32}", params.key)


_grid = np.zeros((4, 6, 5), dtype="float32")
LAYOUTS = {
    "rows": (_grid[0], "ROW"),
    "padded rows": (_grid[0, :, :3], "ROW"),
    "a batch": (_grid, "ROW"),
    "columns": (_grid[0].T, "COLUMN"),
    "a batch of columns": (_grid.transpose(0, 2, 1), "COLUMN"),
    "every second": (_grid[0, :, ::2], "STRIDED"),
    "one column": (_grid[0, :, 1:2], "ROW"),
    "one row of a transposed matrix": (_grid[0, ::2, ::2][:, 1:2].T, "COLUMN"),
    "a vector": (_grid[0, 0], "ROW"),
    "every second of a vector": (_grid[0, 0, ::2], "STRIDED"),
    "a number": (np.zeros((), dtype="float32"), "ROW"),
    "nothing": (np.zeros((0, 4), dtype="float32").T, "ROW"),
    "blocks": (np.zeros((2, 3, 16, 16), dtype="float32"), "NZ"),
    "a batch of blocks": (np.zeros((5, 2, 3, 16, 16), dtype="float32"), "NZ"),
    "blocks with gaps": (np.zeros((2, 6, 16, 16), dtype="float32")[:, ::2], "ROW"),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_the_layout_of_a_tensor(case: str) -> None:
    tensor, expected = LAYOUTS[case]
    assert jit.layout_of(tensor, tuple(jit.Layout)).name == expected


def test_a_layout_that_is_not_allowed_is_copied_to_rows() -> None:
    template = jit.Template(**{**BASE, "layouts": {"LAYOUT": ("x", "row", "nz")}})
    params = jit.params(template, **{**CALL, "x": _grid[0].T})
    assert params.layouts == {"LAYOUT": jit.Layout.ROW}


def test_the_offset_of_an_nz_element_is_where_it_lies() -> None:
    rows, columns = 32, 48
    matrix = np.arange(rows * columns, dtype="int64").reshape(rows, columns)
    blocks = matrix.reshape(rows // 16, 16, columns // 16, 16).transpose(2, 0, 1, 3).copy()
    text = """
    #include "bringup/params.h"
    struct P { bringup_params head; int64_t* out; const int64_t* x; int64_t rows, columns; };
    extern "C" void run(uint32_t, void*, const P* p) {
      static_assert(LAYOUT == BRINGUP_LAYOUT_NZ, "");
      for (int64_t i = 0; i < p->rows; ++i)
        for (int64_t j = 0; j < p->columns; ++j)
          p->out[i * p->columns + j] = p->x[bringup_nz_offset(i, j, p->rows)];
    }
    """
    template = jit.Template(
        text=text,
        name="nz.cpp",
        layouts={"LAYOUT": ("x", "row", "nz")},
        params="ptr(out), ptr(x), rows, columns",
    )
    arguments = {"x": blocks, "rows": rows, "columns": columns, "out": np.zeros_like(matrix)}
    run(kernel(template, **arguments), *arguments.values())
    assert np.array_equal(arguments["out"], matrix)


PREDICATES = {
    "size(x,0) >= 4": True,
    "size(x,-1) > 5": False,
    "4 <= size(x,0) < 5": True,
    "stride(x,0) == 5 and stride(x,1) != 5": True,
    "not ndim(x) == 2 or numel(x) <= 19": False,
    "numel(x) % 3 == 2": True,
    "-numel(x) // 3 == -7": True,
    "n * 2 - 1 == 13": True,
    "size(bias,0) == 0 and flag": True,
}


@pytest.mark.parametrize("text", PREDICATES)
def test_buckets_are_predicates_over_shapes_and_integers(text: str) -> None:
    template = jit.Template(text="", name="t.cpp", abi="args", buckets={"B": text})
    x = np.zeros((4, 5), dtype="float32")
    assert jit.params(template, x=x, bias=None, n=7, flag=True).buckets == {"B": PREDICATES[text]}


def test_a_bucket_that_64_bits_do_not_hold_is_no_answer() -> None:
    """As natively, where an operator is called; Python once said True."""
    template = jit.Template(text="", name="t.cpp", abi="args", buckets={"B": "n * n > 1"})
    assert jit.params(template, n=2**31).buckets == {"B": True}
    with pytest.raises(ValueError, match=r"'n \* n > 1' does not fit into 64 bits"):
        jit.params(template, n=2**40)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no params": ({"params": ""}, "abi='params': needs params="),
    "params of args": ({"abi": "args"}, "params=: belongs to the other forms"),
    "kernel kind": ({"kernel_kind": "tensor"}, "kernel_kind='tensor': expected one of"),
    "macro name": ({"dtypes": {"a b": "x"}}, "macro 'a b': expected the name of a C macro"),
    "macro twice": ({"macros": {"T": 1}}, "macro 'T': declared twice, or taken"),
    "tiles": ({"tiles": [{"A": 1}, {"B": 1}]}, "every set needs the same macros"),
}
UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "dtype of whom": ({"dtypes": {"T": "y"}}, r"dtypes\['T'\]: there is no argument 'y'"),
    "dtype of a text": ({"dtypes": {"T": "act"}}, "act is str, expected Tensor or ScalarType"),
    "layout word": ({"layouts": {"L": ("x", "row", "col")}}, "'col' is none of row, column"),
    "no rows": ({"layouts": {"L": ("x", "nz")}}, "'row' has to be allowed"),
    "choices of a text": ({"choices": {"A": "act"}}, "expected .name, .allowed values of type str"),
    "no identifier": ({"choices": {"A": ("act", "a-b")}}, "'a-b' is no identifier of C"),
    "bucket syntax": ({"buckets": {"B": "size(x,0) >"}}, "cannot be read"),
    "bucket number": ({"buckets": {"B": "size(x,0)"}}, "is not true or false: compare something"),
    "bucket name": (
        {"buckets": {"B": "size(y,0) > 1"}},
        "there is no argument 'y' .the arguments are x",
    ),
    "bucket function": ({"buckets": {"B": "abs(x) > 1"}}, r"'abs\(x\)' is not known"),
    "bucket depth": (
        {"buckets": {"B": "1 + (" * 20 + "1" + ")" * 20 + " > 0"}},
        "is nested deeper than 16 levels",
    ),
    "item syntax": (
        {"params": "ptr(x), size(x"},
        r"params: 'size\(x': it cannot be read",
    ),
    "item name": ({"params": "ptr(y)"}, r"params: 'ptr\(y\)': there is no argument 'y'"),
    "item function": ({"params": "rank(x)"}, r"'rank\(x\)' is not known; a parameter is"),
    "no item": ({"params": "size(x,0) * 2"}, "is more than an item; compute with items in the"),
    "item index": ({"params": "size(x)"}, r"size names a dimension, as in size\(x,0\)"),
    "no index": ({"params": "numel(x,0)"}, r"numel takes no dimension: numel\(x\)"),
    "item type": ({"params": "numel(act)"}, "act is str, expected Tensor"),
    "bare tensor": ({"params": "x"}, r"x is Tensor: write ptr\(x\)"),
    "address": ({"params": "ptr(act)"}, "act is str, which has no address to pass"),
    "blocks": ({"blocks": 0}, "blocks=0: expected 1 to"),
    "blocks item": ({"blocks": "ptr(x)"}, "expected one item that is an integer"),
    "dimension": (
        {"params": "size(x,2)"},
        r"x must have at least 3 dimensions for 'size\(x,2\)', got",
    ),
    "bucket dimension": (
        {"buckets": {"B": "size(x,2) > 0"}},
        "x must have at least 3 dimensions for 'size.x,2. > 0', got shape .4, 5.",
    ),
    "division": ({"buckets": {"B": "1 // flag > 0"}}, "divides by zero"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_template_that_cannot_be_is_refused_by_name(case: str) -> None:
    options, message = WRONG[case]
    with pytest.raises(ValueError, match=rf"jit.Template 't\.cpp': .*{message}"):
        jit.Template(**{**BASE, **options})


@pytest.mark.parametrize("case", UNFIT)
def test_a_template_that_does_not_fit_its_arguments_is_refused_by_name(case: str) -> None:
    options, message = UNFIT[case]
    template = jit.Template(**{**BASE, **options})
    with pytest.raises(ValueError, match=rf"jit.Template 't\.cpp': .*{message}"):
        jit.params(template, **CALL)


def test_values_that_are_not_allowed_are_listed_with_those_that_are() -> None:
    template = jit.Template(**BASE)
    with pytest.raises(ValueError, match="act must be one of 'relu', 'gelu', got 'tanh'"):
        jit.params(template, **{**CALL, "act": "tanh"})
    with pytest.raises(ValueError, match="x is complex256, which has no C type"):
        jit.params(template, **{**CALL, "x": np.zeros((4, 5), dtype="complex256")})
    with pytest.raises(ValueError, match="tile 2: there are 2 sets of tile sizes"):
        jit.params(template, tile=2, **CALL)
    with pytest.raises(TypeError, match=r"flag=<object .*: expected a tensor, an int"):
        jit.params(template, **{**CALL, "flag": object()})
    with pytest.raises(TypeError, match=r"expected a jit.Template, got str \('t.cpp'\)"):
        jit.params("t.cpp")  # type: ignore[arg-type]


def test_a_choice_that_is_none_is_the_word_none() -> None:
    bound = jit.Template(**{**BASE, "layouts": {}, "buckets": {}}).bind(
        [
            jit.Argument("x", "Tensor"),
            jit.Argument("act", "str", optional=True),
            jit.Argument("flag", "bool"),
            jit.Argument("out", "Tensor"),
        ]
    )
    params = jit.Params.of_call(bound, [CALL["x"], None, True, CALL["out"]])
    assert params.choices == {"ACT": "none", "FLAG": True}
