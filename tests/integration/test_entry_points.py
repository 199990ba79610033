"""What an installed bringup offers to others without being imported by them."""

from __future__ import annotations

import html
import json
from pathlib import Path

from tests.forked_python import DYNAMO, output_of_module, run_forked


def test_torch_knows_the_backend_where_nobody_imported_bringup() -> None:
    program = (
        "import sys, torch\n"
        "allowed = {'bringup', 'bringup._version', 'bringup._autoload', "  # torch's autoload
        "'bringup._device_attributes'}\n"
        "imported = {name for name in sys.modules if name.startswith('bringup')}\n"
        "assert imported <= allowed, imported\n"
        "model = torch.compile(torch.nn.Linear(3, 2).eval(), backend='bringup')\n"
        "with torch.no_grad(): print(tuple(model(torch.ones(4, 3)).shape))\n"
    )
    done = run_forked(program, preload=DYNAMO)  # it has torch, and nothing of bringup
    assert done.stdout.strip() == "(4, 2)", done.stderr


def test_benchmarks_print_a_table_and_write_their_rows(tmp_path: Path) -> None:
    written, page = tmp_path / "rows.json", tmp_path / "rows.html"
    arguments = ["op_call", "--quick", "--json", str(written), "--html", str(page)]
    printed = output_of_module("benchmarks", *arguments)
    rows = json.loads(written.read_text())
    assert rows
    assert all(row["peer"] for row in rows)
    # A peer that is not installed has a row that says so.
    assert all(row["ratio"] > 0 if row["ratio"] is not None else row["note"] for row in rows)
    assert any(row["ratio"] is not None for row in rows)
    assert all(row["name"] in printed for row in rows)
    assert all(row["name"] in html.unescape(page.read_text()) for row in rows)
    assert "python -m benchmarks op_call --quick" in page.read_text()
