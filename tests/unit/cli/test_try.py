"""`bringup try`: models it can help, models it cannot, and targets that are none."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from bringup import cli, passes
from bringup.cli.trial import inductor
from bringup.cli.trial.timing import Rounds
from bringup.compiler.options import MODES

FACTORIES = """
from collections import namedtuple
from dataclasses import dataclass

import torch

Point = namedtuple("Point", "x y")


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.down(torch.nn.functional.gelu(self.up(x))) + x)


class Reads(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.sum().item() > 0 else x - 1


class Unsized(torch.nn.Module):
    def forward(self, x):
        return torch.nonzero(x > 0)


def unsized():
    return Unsized(), torch.tensor([1.0, -1.0, 3.0])


class Broken(torch.nn.Module):
    def forward(self, x):
        raise RuntimeError("this model never runs")


def block():
    torch.manual_seed(0)
    return Block(), torch.randn(4, 8)


def reads():
    return Reads(), {"x": torch.ones(3)}


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return (x > 0).sum() + self.calls


def counts():
    return Counts(), torch.ones(4)


def recurrent():
    return torch.nn.LSTM(4, 4), torch.randn(2, 1, 4)


def broken():
    return Broken(), (torch.ones(1),)


def nothing():
    return 7


def needs(size, *rest, kind, depth=2, **others):
    return block()


def tensor_only():
    return torch.ones(3)


class Gives(torch.nn.Module):
    def __init__(self, give):
        super().__init__()
        self.give = give

    def forward(self, x):
        return self.give(x)


def integers():
    return Gives(lambda x: ((x * 2).long(), x > 0)), torch.ones(3)


def empty_list():
    return Gives(lambda x: []), torch.ones(3)


def empty_tuple():
    return Gives(lambda x: ()), torch.ones(3)


def empty_dict():
    return Gives(lambda x: {}), torch.ones(3)


def number():
    return Gives(lambda x: x.shape[0]), torch.ones(3)


factors = [1.0]  # no attribute of anything: nobody can see it and put it back


class TurnsToNan(torch.nn.Module):
    def forward(self, x):
        factor = factors[0]
        factors[0] = float("nan")
        return x + 1, x * factor


class Cached(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x, cache):
        self.seen.add_(x)
        cache["steps"].append(len(cache["steps"]))
        cache["keys"].mul_(2)
        return self.seen * cache["keys"] + torch.rand(3)


def cached():
    return Cached(), (torch.ones(3), {"steps": [], "keys": torch.ones(3)})


@dataclass
class Output:
    logits: torch.Tensor
    hidden: object = None
    loss: float = 0.5


def nested():
    def give(x):
        return Output(x * 2, {"last": [x + 1, None]}), Point(x - 1, 3)

    return Gives(give), torch.ones(3)


class Breaks(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        print("a line of the model's own")
        return y + 1


def breaks():
    print("a line of the factory's own")
    return Breaks(), torch.ones(3)


def nan():
    return TurnsToNan(), torch.ones(3)


answer = 42
"""


PASS = """
from bringup import passes

@passes.register_fusion_pass(name="Mine", stage=passes.PassStage.AFTER_INFER_SHAPE)
class Mine(passes.FusionBasePass):
    def run(self, graph, context):
        return None
"""

QUICK = ("--no-inductor", "--seconds", "0", "--threads", "1")  # one round
NOTHING = "the output holds no tensor and no number: nothing to compare"


@pytest.fixture(autouse=True)
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module `tried_models` in the current folder, and no passes but those shipped."""
    (tmp_path / "tried_models.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("BRINGUP_PASS_PATH", raising=False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    yield
    passes.unload_pass_plugins()
    sys.modules.pop("tried_models", None)


def tried(
    target: str, tmp_path: Path, *options: str, modes: tuple[str, ...] = ("default",)
) -> dict[str, Any]:
    """The JSON of a trial that ended well, in the modes that the test is about."""
    written = tmp_path / "trial.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bringup.cli.trial.run.MODES", modes)
        assert cli.main(["try", target, *QUICK, "--json", str(written), *options]) == 0
    result: dict[str, Any] = json.loads(written.read_text())
    return result


def by_mode(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["mode"]: row for row in result["rows"]}


def matches_of(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in result["passes"][0]["results"]}


def test_block_is_right_in_every_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tried("tried_models:block", tmp_path, modes=MODES)
    rows = by_mode(result)
    assert list(rows) == ["eager", "default", "serve", "max"]
    assert all(row["reason"] == "" for row in rows.values())
    assert all(rows[mode]["max_abs_diff"] < 1e-5 for mode in ("eager", "default", "serve"))
    assert 0 < rows["max"]["max_abs_diff"] < result["narrow_tolerance"]
    assert any("packed weights in bfloat16" in note for note in result["notes"])
    assert matches_of(result)["LibraryAddLayerNorm"]["matches"] == 1
    printed = capsys.readouterr().out
    assert "LibraryAddLayerNorm" in printed
    estimate = re.search(r"it will take about (\d+) s, on a busy machine up to (\d+) s", printed)
    assert estimate is not None
    assert int(estimate[1]) <= int(estimate[2])
    results = matches_of(result)
    missed = [item for item in results.values() if item["matches"] == 0 and item["near_misses"]]
    assert missed
    assert all(item["near_misses"][0]["reason"] for item in missed)


def test_page_has_three_pictures_and_the_line_to_paste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def take(rounds: Rounds[str], calls: Any, **_: Any) -> None:
        rounds.taken += [{name: 2e6 if name == "eager" else 1e6 for name in calls}] * 6

    monkeypatch.setattr(Rounds, "take", take)
    tried("tried_models.py:block", tmp_path, "--html", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == page.count("</svg>") == 3
    line = 'torch.compile(model, backend="bringup", mode="default")'
    assert line in html.unescape(page)
    last = capsys.readouterr().out
    assert f"{line}  # call it under torch.inference_mode()" in last


def test_passes_of_a_path_are_tried_besides_the_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PASS)
    result = tried("tried_models:block", tmp_path, "--path", "mine.py")
    names = [item["name"] for item in result["passes"][0]["results"]]
    assert names[0] == "Mine"
    assert "LibraryAddLayerNorm" in names


def test_what_cannot_be_captured_runs_and_a_note_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        result = tried("tried_models:unsized", tmp_path, modes=("serve",))
    rows = by_mode(result)
    assert rows["serve"]["ms"] > 0
    assert rows["serve"]["max_abs_diff"] == 0.0
    (note,) = (note for note in result["notes"] if note.startswith("serve: "))
    assert "runs as it is: option 'capture': " in note
    assert "runs as it is" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("factory", "changed"),
    [
        ("counts", "model.calls"),
        ("cached", "model.seen, args[1]['steps'], args[1]['keys'], torch's random numbers"),
    ],
)
def test_state_that_a_call_changes_is_named_and_put_back_before_every_call(
    factory: str, changed: str, tmp_path: Path
) -> None:
    result = tried(f"tried_models:{factory}", tmp_path, modes=MODES)
    (note,) = result["notes"]
    assert set(note.removeprefix("A call changes ").partition(":")[0].split(", ")) == set(
        changed.split(", ")
    )
    gaps = {mode: row["max_abs_diff"] for mode, row in by_mode(result).items() if row["ms"]}
    assert set(gaps) == {"eager", *MODES}
    assert set(gaps.values()) == {0.0}


def test_dataclasses_dicts_named_tuples_none_and_numbers_are_compared(tmp_path: Path) -> None:
    rows = by_mode(tried("tried_models:nested", tmp_path))
    assert {row["max_abs_diff"] for row in rows.values()} == {0.0}
    assert {row["reason"] for row in rows.values()} == {""}


def test_graph_break_is_named_with_its_line_and_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (broken,) = tried("tried_models:breaks", tmp_path)["graph_breaks"]
    line = FACTORIES[: FACTORIES.index('    print("a line of the model')].count("\n") + 1
    assert broken["place"] == f"tried_models.py:{line}"
    assert broken["code"].startswith("print(")
    assert broken["reason"]
    assert f"graph break: tried_models.py:{line}: " in capsys.readouterr().out


def test_what_model_and_factory_print_is_not_among_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["try", "tried_models:breaks", *QUICK, "--json", "-"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["name"] == "tried_models:breaks"
    assert output.err.splitlines().count("a line of the model's own") == 1
    assert output.err.count("a line of the factory's own") == 1
    assert "eager/this" in " ".join(output.err.split())


def test_threads_are_set_for_all_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = torch.get_num_threads()
    assert tried("tried_models:number", tmp_path, "--threads", "1")["threads"] == 1
    assert torch.get_num_threads() == before
    assert "Threads of every mode: 1." in capsys.readouterr().out


def test_rows_appear_as_they_are_measured_and_survive_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def take(rounds: Rounds[str], calls: Any, **_: Any) -> None:
        rounds.taken.append({name: 2e6 if name == "eager" else 1e6 for name in calls})
        if "serve" in calls:
            raise KeyboardInterrupt

    monkeypatch.setattr(Rounds, "take", take)
    written = tmp_path / "trial.json"
    assert cli.main(["try", "tried_models:block", "--json", str(written)]) == 130
    out = capsys.readouterr().out
    live, _, table = out.partition("What the passes did")
    assert "default: 1 ms, against eager too few rounds to say (1), rounds: 1" in live
    assert "serve: 1 ms" in live
    assert "Interrupted: this is what was measured until then." in table
    result = json.loads(written.read_text())
    assert result["interrupted"] is True
    assert {mode: row["ms"] for mode, row in by_mode(result).items()} == {
        "eager": 2.0,
        "default": 1.0,
        "serve": 1.0,
    }


def test_interruption_before_anything_was_measured_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Rounds, "take", interrupt)
    assert cli.main(["try", "tried_models:block"]) == 130
    assert "interrupted before anything could be compared" in capsys.readouterr().out


def test_model_that_dynamo_leaves_alone_says_so(tmp_path: Path) -> None:
    result = tried("tried_models:recurrent", tmp_path)
    assert result["passes"] == []
    assert any("Dynamo found no graph" in note for note in result["notes"])


def test_hugging_face_folder_without_weights_gets_random_ones(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "tiny"
    transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    ).save_pretrained(folder)
    result = tried(str(folder), tmp_path)
    assert any("random ones were made" in note for note in result["notes"])
    assert by_mode(result)["default"]["max_abs_diff"] < 1e-5


def test_integer_and_boolean_outputs_are_compared_and_agree(tmp_path: Path) -> None:
    rows = by_mode(tried("tried_models:integers", tmp_path))
    assert {row["max_abs_diff"] for row in rows.values() if row["ms"]} == {0.0}


@pytest.mark.parametrize("factory", ["empty_list", "empty_tuple", "empty_dict"])
def test_output_without_a_tensor_has_no_difference_and_says_why(
    factory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = by_mode(tried(f"tried_models:{factory}", tmp_path))
    assert rows["eager"]["max_abs_diff"] is None
    assert rows["eager"]["reason"] == NOTHING
    assert all(row["reason"] for row in rows.values())
    assert "holds no tensor" in " ".join(capsys.readouterr().out.split())


def test_nan_is_null_in_the_json_and_nan_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tried("tried_models:nan", tmp_path)
    row = by_mode(result)["eager"]
    assert row["max_abs_diff"] is None
    assert row["reason"] == "the outputs differ by a NaN at [1]"
    (note,) = result["notes"]
    assert note.startswith("Two calls in eager mode on the same inputs differ")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["eager", "nan"] in [[*words[:1], *words[-1:]] for words in lines]


def test_number_as_an_output_is_compared(tmp_path: Path) -> None:
    rows = by_mode(tried("tried_models:number", tmp_path))
    assert rows["default"]["max_abs_diff"] == 0.0


@pytest.mark.slow
def test_inductor_is_compared_with_in_the_same_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def take(rounds: Rounds[str], calls: Any, **_: Any) -> None:
        times = {"eager": 8e6, "default": 2e6, "serve": 1e6, "max": 1e6, "inductor": 4e6}
        for call in calls.values():
            call()
        rounds.taken += [{name: times[name] for name in calls}] * 6

    monkeypatch.setattr(Rounds, "take", take)
    written = tmp_path / "trial.json"
    arguments = ["--inductor-seconds", "600", "--json", str(written)]
    assert cli.main(["try", "tried_models:block", *arguments]) == 0
    result = json.loads(written.read_text())
    rows = by_mode(result)
    assert {mode: row["speedup_vs_inductor"]["median"] for mode, row in rows.items()} == {
        "eager": 0.5,
        "default": 2.0,
        "serve": 4.0,
        "max": 4.0,
        "inductor": 1.0,
    }
    assert rows["inductor"]["max_abs_diff"] < 1e-5
    assert result["verdict"].startswith(
        "serve is 8.00x (8.00 to 8.00) as fast as eager, and 4.00x (4.00 to 4.00) as fast as "
    )
    assert "4.00x" in capsys.readouterr().out


def test_inductor_without_an_answer_in_time_is_given_up_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    wait = subprocess.Popen.communicate
    started: list[psutil.Process] = []

    def communicate(child: subprocess.Popen[str], timeout: float | None = None) -> Any:
        if timeout is None:
            return wait(child)
        started.append(psutil.Process(int(fifo.read_text())))  # until the grandchild is there
        raise subprocess.TimeoutExpired(child.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    script = f"tail -f /dev/null & echo $! > {fifo}; wait"
    with pytest.raises(inductor.InductorError, match="Inductor had not compiled it after 60 s"):
        inductor.compile_within(60, "a:b", command=["sh", "-c", script])
    _, alive = psutil.wait_procs(started, timeout=240)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('print(\'{"error": "LoweringException: no"}\')', "LoweringException: no"),
        ("raise SystemExit(3)", "Inductor's process ended with exit code 3"),
    ],
)
def test_inductor_that_fails_says_why(script: str, words: str) -> None:
    with pytest.raises(inductor.InductorError, match=words):
        inductor.compile_within(600, "a:b", command=[sys.executable, "-c", script])


def test_inductor_that_is_given_up_is_a_row_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "trial.json"
    options = ["--seconds", "0", "--inductor-seconds", "0", "--json", str(written)]
    monkeypatch.setattr("bringup.cli.trial.run.MODES", ())
    assert cli.main(["try", "tried_models:block", *options]) == 0
    row = by_mode(json.loads(written.read_text()))["inductor"]
    assert (row["ms"], row["reason"].partition(":")[0]) == (None, "given up")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("tried_models", "'tried_models' is neither a folder nor module:factory; did you mean "),
        ("simple.py", "did you mean simple:make?"),
        ("tried_models:blok", "got nothing of this name; did you mean tried_models:block?"),
        (
            "Qwen/Qwen3-0.6B",
            "download it first: hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B, then: "
            "bringup try Qwen3-0.6B",
        ),
        ("nowhere.py:make", "there is no file 'nowhere.py'"),
        ("json.py:make", "json.py has the name of another module"),
        ("nowhere", "is neither a folder nor module:factory"),
        ("no_such_module:make", "there is no module 'no_such_module'"),
        ("tried_models:missing", "expected a function, got nothing of this name"),
        ("tried_models:answer", "expected a function, got a int"),
        ("tried_models:nothing", "to return (torch.nn.Module, example_inputs), got int"),
        (
            "json:dumps",
            "SubjectError: json:dumps: a factory takes no arguments, but this one needs 'obj'; "
            "give a function without parameters that returns (model, example_inputs)",
        ),
        ("tried_models:needs", "a factory takes no arguments, but this one needs 'size', 'kind';"),
        ("tried_models:tensor_only", "to return (torch.nn.Module, example_inputs), got Tensor"),
        (".", "has no config.json"),
        ("tried_models:broken", "this model never runs"),
    ],
)
def test_target_that_cannot_be_tried_exits_1_and_says_why(
    target: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("simple.py").write_text("def other(x): ...\ndef first(): ...\ndef make(): ...\n")
    Path("json.py").touch()
    assert cli.main(["try", target, "--no-inductor", "--threads", "1"]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert words in error
    assert "Traceback" not in error


def test_folder_without_transformers_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert cli.main(["try", str(tmp_path), "--no-inductor"]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert f"SubjectError: {tmp_path} needs transformers: pip install transformers" in error


def test_folder_of_a_model_that_takes_no_token_ids_is_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "vision"
    transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        image_size=16,
    ).save_pretrained(folder)
    assert cli.main(["try", str(folder), "--no-inductor"]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert f"SubjectError: {folder}: ViTModel takes 'pixel_values'; only models that" in error
    assert "write a module:factory for this one" in error
