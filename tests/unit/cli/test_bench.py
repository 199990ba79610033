"""`bringup bench`: what it counts, what it refuses, and what it says of an earlier run."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bringup import cli
from bringup.cli._exit_codes import ExitCode
from bringup.cli.bench import measure as measuring
from bringup.cli.bench import subject as subject_module
from bringup.cli.bench import tvm_ffi_peer
from bringup.cli.bench.measure import Row, compared, measure, product_gflops
from bringup.cli.bench.show import Run, page, size_text, table
from bringup.cli.bench.subject import Subject, sizes_of_rank, sweep
from bringup.cli.trial.timing import Limits
from bringup.cli.trial.trial_model import SubjectError
from bringup.report import Ratio

OPERATORS = '''
import torch
from bringup import jit, ops

C = """void axpy(float *out, const float *x, const float *y, float a, long n) {
  for (long i = 0; i < n; ++i) out[i] = x[i] + a * y[i]; }
void scale(float *x, const float *w, long n) { for (long i = 0; i < n; ++i) x[i] *= w[0]; }
void fill(float *out, long n) { for (long i = 0; i < n; ++i) out[i] = 1; }"""
axpy = ops.kernel_op(
    "bench_test::axpy(Tensor x, Tensor y, float a) -> Tensor",
    source=jit.Source(name="axpy.c", text=C), entry="axpy",
    args="ptr(out), ptr(x), ptr(y), a, numel(x)",
    outputs=ops.empty_like("x"), checks=ops.same_shape("x", "y"),
)
scale_ = ops.kernel_op(
    "bench_test::scale_(Tensor(a!) x, Tensor w) -> Tensor(a!)",
    source=jit.Source(name="axpy.c", text=C), entry="scale",
    args="ptr(x), ptr(w), numel(x)", checks=ops.shape("w", 1),
)

outer = ops.kernel_op(
    "bench_test::outer(Tensor x) -> Tensor", source=jit.Source(name="axpy.c", text=C), entry="fill",
    args="ptr(out), numel(out)", outputs=ops.empty("numel(x)", "numel(x)", dtype="x"),
)

P = """#include <bringup/kernel.h>
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<const float, 1> x(args[0]);
  const bringup::View<float, 1> y(args[1]);
  const auto copy = [=](int64_t i, int64_t end) { for (; i < end; ++i) y(i) = x(i); };
  bringup::parallel_for(ctx, x.size(0), 8, copy);
  return 0; }"""
threaded = ops.kernel_op(
    "bench_test::threaded(Tensor x) -> Tensor", source=jit.Source(name="threaded.cpp", text=P),
    outputs=ops.empty_like("x"), checks=ops.rank("x", 1),
)

def integer(*sizes): return torch.ones(sizes), torch.ones(sizes), 2
def reference(x, y, a): return torch.add(x, y, alpha=a)
def wrong(x, y, a): return x + a * y + (x.numel() == 2048)
def shapes_of(*sizes): return torch.ones(sizes), torch.ones(sizes), 2.0
def no_tuple(*sizes): return torch.ones(sizes)
def no_tensor(*sizes): return (1, 2)
def product(x, y, a): return x + a * y + 0 * (torch.ones(2, 3) @ torch.ones(3, 4)).sum()
def nothing(*_): return 0
def flops(x, y, a): return 10 * x.numel()
number = 3
'''


@pytest.fixture(scope="module", autouse=True)
def defined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("bench")
    (folder / "bench_ops.py").write_text(OPERATORS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder


def bench(*options: str, target: str = "bench_ops:axpy") -> int:
    return cli.main(["bench", target, "--no-inductor", "--threads=1", "--seconds=0", *options])


def test_each_size_is_measured_beside_the_peer_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "bench.json"
    options = ["--against", "bench_ops:reference", "--shapes", "2048,3x512", "--flops", "2"]
    options += ["--json", str(place), "--html", str(tmp_path / "bench.html")]
    assert bench(*options) == ExitCode.DONE
    found = json.loads(place.read_text())
    assert found["operator"] == "bench_test::axpy"
    first, second = found["rows"]
    assert [first["shape"], first["dtype"], first["bytes"]] == ["2x1024", "float32", 3 * 4 * 2048]
    assert [second["shape"], second["bytes"]] == ["3x512", 3 * 4 * 3 * 512]
    assert [first["flops"], second["flops"]] == [2 * 2048, 2 * 3 * 512]
    assert first["ns"]["median"] > 0
    assert first["against"]["eager"]["median"] > 0
    assert found["product"] > 0
    assert found["headline"] in " ".join(capsys.readouterr().out.split())
    written = (tmp_path / "bench.html").read_text()
    assert found["headline"] in written
    assert written.count("<svg") == 2


def test_one_round_gives_the_part_of_the_triads_bandwidth() -> None:
    subject = Subject("bench_ops:axpy")
    assert subject.notes == ["Nothing said what is right: give --against."]
    row = measure(subject, (4096,), Limits(0))
    assert row.ns.rounds == 1
    assert row.of_triad.median == pytest.approx(row.gbs / row.peak_gbs)
    assert row.gbs == pytest.approx(3 * 4 * 4096 / row.ns.median)


def test_a_wrong_result_is_an_error_before_anything_is_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring.Rounds, "take", lambda *_, **__: pytest.fail("timed"))
    assert bench("--against", "bench_ops:wrong", "--shapes", "2048") == ExitCode.FAILED
    words = capsys.readouterr().err
    assert "bench_test::axpy is not eager at 2x1024" in words
    assert "--tolerance" in words


def test_every_peer_has_to_be_right_and_a_tolerance_is_the_users() -> None:
    peers = ["good=bench_ops:reference", "bad=bench_ops:wrong"]
    with pytest.raises(SubjectError, match="bad is not good at 2x1024"):
        Subject("bench_ops:axpy", peers).case((2048,))
    Subject("bench_ops:axpy", peers).case((4096,))
    Subject("bench_ops:axpy", peers, tolerance=1.0).case((2048,))


def test_what_is_written_in_place_and_returned_moves_once() -> None:
    case, _ = Subject("bench_ops:scale_").case((2048,))
    assert case.bytes == 4 * 2048 + 4
    case, _ = Subject("bench_ops:scale_", flops="1").case((2048,))
    assert case.flops == 2048


def test_operations_and_bytes_are_what_is_said() -> None:
    def counted(**options: Any) -> tuple[float, float]:
        case, _ = Subject("bench_ops:axpy", **options).case((2048,))
        return case.flops, case.bytes

    assert counted() == (0, 24576)
    assert counted(against=["bench_ops:product"]) == (2 * 2 * 3 * 4, 24576)
    assert counted(flops="0.5") == (1024, 24576)
    assert counted(flops="bench_ops:flops", moved="bench_ops:flops") == (20480, 20480)


def test_a_call_without_bytes_is_refused() -> None:
    with pytest.raises(SubjectError, match="cannot move 0 bytes"):
        Subject("bench_ops:axpy", moved="bench_ops:nothing").case((2048,))


def test_sizes_end_before_results_fill_the_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject_module, "sweep", lambda itemsize, memory: [(64,), (1 << 20,)])
    assert bench(target="bench_ops:outer") == ExitCode.DONE
    words = capsys.readouterr().out
    assert "1x64" in words
    assert "would fill 4,398,050,705,408 bytes: no larger size" in words
    monkeypatch.setattr(subject_module, "sweep", lambda itemsize, memory: [(1 << 20,)])
    assert bench(target="bench_ops:outer") == ExitCode.FAILED
    assert "would fill" in capsys.readouterr().err


def test_arguments_come_from_a_function_of_the_sizes() -> None:
    _, sample = Subject("bench_ops:axpy", inputs="bench_ops:shapes_of").case((3, 5))
    assert sample.args[0].shape == (3, 5)
    with pytest.raises(ValueError, match="expected a tuple of arguments"):
        Subject("bench_ops:axpy", inputs="bench_ops:no_tuple").case((3,))
    with pytest.raises(SubjectError, match="no tensor among what --inputs returns"):
        Subject("bench_ops:axpy", inputs="bench_ops:no_tensor").case((3,))


def test_an_operator_is_found_by_its_name_too() -> None:
    import bench_ops  # type: ignore[import-not-found]  # noqa: F401

    subject = Subject("bench_test::axpy", ["bench_ops:reference"])
    assert subject.name == "bench_test::axpy"
    assert subject.case((1024,))[0].shape == "1x1024"


def test_inductor_is_compiled_from_the_first_peer_or_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tvm_ffi_peer, "is_installed", lambda: False)
    monkeypatch.setattr(torch, "compile", lambda call, *, dynamic: call)
    subject = Subject("bench_ops:axpy", ["bench_ops:reference"], inductor=True)
    assert set(measure(subject, (2048,), Limits(0)).against) == {"eager", "inductor"}

    def broken(*_: Any) -> None:
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(torch, "compile", lambda call, *, dynamic: broken)
    subject = Subject("bench_ops:axpy", ["bench_ops:reference"], inductor=True)
    assert set(measure(subject, (2048,), Limits(0)).against) == {"eager"}
    assert subject.notes == ["Inductor failed: no compiler"]


@pytest.mark.skipif(not tvm_ffi_peer.is_installed(), reason="pip install apache-tvm-ffi")
def test_tvm_ffi_calls_the_same_kernel_where_it_is_installed() -> None:
    subject = Subject("bench_ops:axpy", ["bench_ops:reference"])
    for size in (2048, 64):
        assert set(measure(subject, (size,), Limits(0)).against) == {"eager", "tvm-ffi"}
    assert subject.notes == []
    _, sample = Subject("bench_ops:scale_").case((64,))
    call = tvm_ffi_peer.peer("bench_test::scale_", sample, [])
    x, w = torch.ones(2, 32), torch.tensor([3.0])
    assert call(x, w) is x
    assert x.sum() == 3 * 64
    subject = Subject("bench_ops:threaded")
    assert set(measure(subject, (64,), Limits(0)).against) == set()
    assert "tvm-ffi is left out: it asks for bringup's threads" in subject.notes[-1]


def test_what_tvm_ffi_does_not_take_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tvm_ffi_peer, "is_installed", lambda: True)
    subject = Subject("bench_ops:axpy", inputs="bench_ops:integer")
    assert set(measure(subject, (8,), Limits(0)).against) == set()
    assert set(measure(subject, (4,), Limits(0)).against) == set()
    (note,) = (one for one in subject.notes if "tvm-ffi" in one)
    assert "left out: a is float, given int; --against takes a wrapper" in note


def test_an_interrupted_run_shows_and_writes_the_sizes_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Subject.case

    def interrupted(self: Subject, shape: tuple[int, ...]) -> Any:
        if shape != (2048,):
            raise KeyboardInterrupt
        return case(self, shape)

    monkeypatch.setattr(Subject, "case", interrupted)
    place = tmp_path / "bench.json"
    assert bench("--shapes", "2048,4096", "--json", str(place)) == ExitCode.INTERRUPTED
    assert "interrupted: no larger size" in capsys.readouterr().out
    found = json.loads(place.read_text())
    assert [row["shape"] for row in found["rows"]] == ["2x1024"]
    assert found["interrupted"] is True
    assert bench("--shapes", "4096") == ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("bench_ops:axpi",), 1, "did you mean bench_ops:axpy?"),
        (("bench_test::axpi",), 1, "did you mean bench_test::axpy?"),
        (("bench_ops",), 1, "'bench_ops': expected module:name, file.py:name"),
        (("bench_ops:reference",), 1, "bench_ops:reference: expected an operator"),
        (("bench_ops:number",), 1, "expected a function, got a int"),
        (("bench_ops:axpy", "--against", "bench_ops:referenc"), 1, "bench_ops:reference?"),
        (("bench_ops:axpy", "--flops", "two"), 1, "'two': expected module:name"),
        (("bench_ops:axpy", "--shapes", "4x"), 2, "expected sizes such as 1024,64x1024"),
        (("bench_ops:axpy", "--shapes", "0"), 2, "expected sizes such as 1024,64x1024"),
        (("bench_ops:axpy", "--dtype", "flaot16"), 2, "did you mean float16?"),
        (("bench_ops:axpy", "--dtype", "device"), 2, "torch has no dtype 'device'"),
        (("bench_ops:axpy", "--dtype", "bfloat16"), 1, "no argument takes torch.bfloat16"),
        (("aten::add.Tensor",), 1, "--inputs MODULE:FUNCTION"),
    ],
)
def test_a_mistake_is_named_with_what_was_meant(
    options: tuple[str, ...], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*options[1:], target=options[0]) == code
    assert words in " ".join(capsys.readouterr().err.replace("│", "").split())


def row(time: float, part: float, noise: float = 0.01, **more: Any) -> Row:
    def around(value: float) -> Ratio:
        return Ratio(value, value * (1 - noise), value * (1 + noise), 11)

    values = {"flops": 0.0, "against": {}, **more}
    return Row("8", "float32", 96.0, ns=around(time), peak_gbs=2.0, of_triad=around(part), **values)


@pytest.mark.parametrize(
    ("now", "is_slower"),
    [
        (row(1.5, 0.4), True),
        (row(1.5, 0.6), False),  # the triad took as much longer: a busy machine
        (row(1.0, 0.4), False),
        (row(1.06, 0.5), False),  # less than 5 % is sure
        (row(1.5, 0.4, noise=0.4), False),
        (row(0.5, 1.2), False),
    ],
)
def test_slower_is_what_is_beyond_noise_in_time_and_beside_the_triad(
    now: Row, is_slower: bool
) -> None:
    before = {("8", "float32"): json.loads(json.dumps(ratios(row(1.0, 0.6))))}
    found = compared(now, before)
    assert found.is_slower is is_slower
    assert found.before == now.ns.median


def ratios(of: Row) -> dict[str, Any]:
    return {"ns": vars(of.ns), "of_triad": vars(of.of_triad)}


def test_too_few_rounds_before_or_another_size_say_nothing() -> None:
    before = ratios(row(1.0, 0.6))
    before["ns"] = {**before["ns"], "high": None}
    assert not compared(row(9.0, 0.1), {("8", "float32"): before}).is_slower
    other = compared(row(9.0, 0.1), {("9", "float32"): ratios(row(1.0, 0.6))})
    assert (other.before, other.is_slower) == (None, False)


@pytest.mark.parametrize(
    ("was", "code", "mark"), [(1e12, ExitCode.DONE, "0.00x"), (1e-3, ExitCode.FAILED, "slower")]
)
def test_an_earlier_run_fails_a_slower_one(
    was: float, code: ExitCode, mark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "before.json"
    assert bench("--shapes", "2048", "--json", str(place)) == ExitCode.DONE
    found = json.loads(place.read_text())
    sure = {"median": was, "low": was, "high": was, "rounds": 11}
    found["rows"][0] |= {"ns": sure, "of_triad": {**sure, "low": 1e9}}
    place.write_text(json.dumps(found))
    options = ["--shapes", "2048", "--compare", str(place), "--seconds", "0.1"]
    assert bench(*options) == code
    assert mark in capsys.readouterr().out
    assert bench(*options, "--shapes", "4096") == ExitCode.USAGE
    assert "has none of these sizes" in capsys.readouterr().err
    place.write_text(json.dumps({**found, "rows": []}))
    assert bench(*options) == ExitCode.USAGE
    found["machine"]["processor"] = "another"
    place.write_text(json.dumps(found))
    assert bench(*options) == ExitCode.USAGE
    assert "'another' there" in " ".join(capsys.readouterr().err.replace("│", "").split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "is no file of"),
        ("[1", "is no file of"),
        ('{"rows": [], "operator": "a::b", "machine": {}}', "operator is 'bench_test::axpy' here"),
    ],
)
def test_a_file_of_something_else_is_refused(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "before.json"
    place.write_text(text)
    assert bench("--compare", str(place)) == ExitCode.USAGE
    assert words in " ".join(capsys.readouterr().err.replace("│", "").split())


@pytest.mark.parametrize(
    ("shape", "rank", "sizes"),
    [
        ((2048,), 1, (2048,)),
        ((2048,), 2, (2, 1024)),
        ((2048,), 4, (2, 1, 1, 1024)),
        ((1500,), 2, (1, 1500)),
        ((3, 5), 2, (3, 5)),
        ((3, 5), 1, (3,)),
        ((3, 5), 3, (3, 5, 5)),
    ],
)
def test_sizes_of_a_rank(shape: tuple[int, ...], rank: int, sizes: tuple[int, ...]) -> None:
    assert sizes_of_rank(shape, rank) == sizes


def test_the_default_sizes_grow_from_the_first_cache_to_what_memory_allows() -> None:
    counts = [count for (count,) in sweep(4, 1 << 24)]
    assert counts[-1] == 1 << 20  # 3 x 4 MiB in 16 MiB
    assert counts[0] * 12 < 128 << 10
    assert all(2 * one <= other for one, other in itertools.pairwise(counts))
    assert sweep(8, 1 << 24)[-1] == (1 << 19,)


def test_no_product_of_a_dtype_is_no_peak() -> None:
    assert product_gflops("bool") == 0


def test_the_headline_names_the_nearest_peak() -> None:
    slow, near = row(100.0, 0.2), row(50.0, 0.9, against={"eager": Ratio(3.1, 3, 3.2, 11)})
    run = Run("my::op", [slow, near], 0.0, [])
    assert (
        run.headline
        == "my::op: 0.96x of the memory peak at 96 B; against eager: 3.10x (3.00 to 3.20)"
    )
    run = Run("my::op", [slow, row(80.0, 0.9, flops=120.0)], 1.6, [])
    assert run.headline == "my::op: 0.94x of the matrix product peak at 96 B"


def test_a_table_tells_how_sure_a_figure_is() -> None:
    lopsided = {"eager": Ratio(2.0, 1.9, 2.4, 11), "other": Ratio(2.0, 1.2, 2.1, 11)}
    unsure = {"eager": Ratio(2.0, 0.5, 2.1, 11), "other": Ratio(2.0, 0.0, math.inf, 3)}
    rows = [row(48.0, 1.0, against=lopsided), row(96e6, 1.0, against=unsure)]
    shown = table(Run("my::op", rows, 0.0, ["said"]))
    titles = [column.heading for column in shown.columns]
    assert titles == ["shape", "us", "of peak", "eager", "other", "GB/s", "moved"]
    first, second = shown.rows
    assert first == ("8", "0.048 ±1%", "1.00x", "2.00x ±20%", "2.00x ±40%", "2", "96 B")
    assert second[1:5] == ("96,000 ±1%", "0.00x", "2.00x noisy", "2.00x ?")
    assert not any("above 1" in note for note in shown.notes)
    assert shown.notes[-2:] == ["eager, other: how many times as long they take", "said"]


def test_a_table_has_operations_and_the_earlier_run_where_they_are_known() -> None:
    rows = [row(24.0, 1.0, flops=48.0), replace(row(48.0, 1.0), before=1.5, is_slower=True)]
    shown = table(Run("my::op", rows, 4.0, []))
    titles = [column.heading for column in shown.columns]
    assert titles == ["shape", "us", "of peak", "before", "GB/s", "GFLOP/s", "moved"]
    assert [one[2:6] for one in shown.rows] == [
        ("2.00x", "-", "4", "2"),
        ("1.00x", "1.50x slower", "2", "0"),
    ]
    assert any("above 1" in note for note in shown.notes)


def test_a_page_draws_the_roofline_where_operations_are_known() -> None:
    rows = [row(24.0, 1.0, flops=48.0), row(48.0, 1.0)]
    with_product = page(Run("my::op", rows, 4.0, []))
    assert [section.heading for section in with_product.sections] == [
        "Bandwidth by size",
        "Roofline",
    ]
    (picture,) = with_product.sections[1].figures
    assert picture.count("<circle") == 2  # the size with operations, and the legend
    assert [one.heading for one in page(Run("my::op", rows, 0.0, [])).sections] == [
        "Bandwidth by size"
    ]


@pytest.mark.parametrize(
    ("size", "text"),
    [(96, "96 B"), (1024, "1 KiB"), (1000, "0.977 KiB"), (3 << 20, "3 MiB"), (5 << 30, "5 GiB")],
)
def test_a_size_has_its_unit(size: int, text: str) -> None:
    assert size_text(size) == text
