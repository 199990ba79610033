"""README: its numbers are those of the code, its limits those of the status page."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks._chart import draw
from tests.docs.test_status import rows

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_functions_of_a_driver_are_counted() -> None:
    header = (ROOT / "include/bringup/driver.h").read_text()
    table = header[header.index("typedef struct bringup_driver {") :]
    functions = len(re.findall(r"^  (?:int32_t|const char\*) \(\*\w+\)\(", table, re.MULTILINE))
    assert f"{table.count('[required]')} of its table's {functions} functions" in plain(README)


def plain(text: str) -> str:
    return " ".join(text.split())


def test_what_the_limits_name_is_refused_or_missing_and_no_more() -> None:
    limits = plain(README[README.index("## Limits") :])
    states = {feature: state for feature, state, _ in rows()}
    for words, feature in {
        "compressed sparse": "compressed sparse tensors by rows or columns (CSR, CSC)",
        "semi-structured": "semi-structured sparse tensors",
        "quantized": "quantized tensors",
        "strided nested": "strided nested tensors",
        "`torch.cond`": "gradients through captured control flow",
    }.items():
        assert words in limits
        assert states[feature].startswith(("refused", "missing")), feature
    for works in ("LSTM", "GRU", "inference only", "waits for the launch"):
        assert works not in limits


def test_pictures_are_drawn_from_what_was_measured() -> None:
    pictures = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
    assert pictures
    for picture in pictures:
        assert picture.name in README
        measured = json.loads(picture.with_suffix(".json").read_text())
        assert picture.read_text() == draw(measured["title"], measured["rows"])
