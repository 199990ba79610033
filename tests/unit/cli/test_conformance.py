"""`bringup conformance`: what it prints, writes and ends with; its page in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.unit.conformance.conftest import forked_workers  # noqa: F401 - a fixture

from bringup import cli, report
from bringup.cli._exit_codes import ExitCode
from bringup.conformance import CaseResult, Conformance, conformance_page

SLICE = ["conformance", "--driver", "sim", "--filter", "*/e[mx]p*/float32", "--samples", "2"]
MEASURES = """
<script>
const whole = document.querySelector('svg').getBoundingClientRect().width;
const widths = {};
for (const part of document.querySelectorAll('rect')) {
  const {width, y} = part.getBoundingClientRect();
  (widths[y] ||= []).push(width / whole);
}
const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
document.title = JSON.stringify({widths, wide, rows: document.querySelectorAll('tr').length});
</script>
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))


def made() -> Conformance:
    facts = {"driver": "/x/libx.so", "device": "npu", "torch": "2.13"}
    found = Conformance(facts)
    found.results = [
        CaseResult("driver/copies", "pass", native=True, samples=1),
        CaseResult("op/add/float32", "pass", native=True, calls=3, seconds=1.0, error=1e-7),
        CaseResult(
            "op/linalg.svd/float32", "pass", calls=2, calls_on_host=2, seconds=1.0,
            seconds_on_host=0.5,
        ),
        CaseResult("op/linalg.qr/float32", "refused", reason="NotImplementedError: <none>"),
        CaseResult("op/linalg.inv/float32", "crashed", reason="ended by SIGSEGV"),
        CaseResult("op/empty/int64", "skipped"),
    ]  # fmt: skip
    return found


def test_the_headline_is_native_and_the_total_stands_beside_it() -> None:
    lines = conformance_page.headline(made())
    assert lines[0] == "operators: 25.0% native (50.0% with the host's help), of 4"
    assert lines[1] == "calls: 60.0% native (100.0% with the host's help), of 5"
    assert lines[2] == "time: 75.0% native (100.0% with the host's help), of 2.0 s"
    assert lines[3] == "cases: 40.0% native (60.0% with the host's help), of 5"


@pytest.mark.usefixtures("forked_workers")
def test_a_slice_is_run_written_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, page = tmp_path / "found.json", tmp_path / "page.html"
    assert cli.main([*SLICE, "--json", str(file), "--html", str(page)]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert re.search(r"operators: \d+\.\d% native \(100\.0% with the host's help\)", shown)
    found = json.loads(file.read_text())
    names = {row["id"]: row["outcome"] for row in found["results"]}
    assert {"op/exp/float32", "op/empty/float32", "op/expand/float32"} <= set(names)
    assert set(names.values()) == {"pass"}
    assert "Conformance of npu" in page.read_text()
    assert cli.main([*SLICE, "--resume", "--baseline", str(file)]) == ExitCode.DONE
    again = capsys.readouterr().out
    assert f"{len(names)} cases are from the last run" in again
    assert "0 cases are worse than in" in again


@pytest.mark.usefixtures("forked_workers")
def test_a_case_that_is_worse_than_in_the_baseline_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "then.json"
    rows = [{"id": "op/exp/float32", "outcome": "pass", "native": True}]
    file.write_text(json.dumps({"results": rows}))
    command = ["conformance", "--no-operators", "--filter", "op/exp/float32", "--samples", "1"]
    assert cli.main([*command, "--baseline", str(file)]) == ExitCode.FAILED
    assert "op/exp/float32: native -> pass" in capsys.readouterr().out


@pytest.mark.usefixtures("forked_workers")
def test_a_refusal_ends_with_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BRINGUP_FALLBACK", "forbid")
    file = tmp_path / "found.json"
    command = ["conformance", "--no-operators", "--filter", "op/exp/float32", "--json", str(file)]
    assert cli.main(command) == ExitCode.FAILED
    (row,) = json.loads(file.read_text())["results"]
    assert row["outcome"] == "refused"


def test_the_page_has_families_costs_errors_and_what_does_not_pass() -> None:
    text = report.to_html(conformance_page.page(made()))
    for words in ("Operators by family", "linalg", "Cost of the fallback", "Error by dtype"):
        assert words in text
    assert "NotImplementedError: &lt;none&gt;" in text
    assert "25.0% of the time of cases that pass was spent on the host." in text
    assert "1.0e-07" in text


def in_browser(page: Path, folder: Path) -> Any:
    """What a browser without a network measures of the page."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no browser: apt-get install chromium (tools/install_compilers.py)")
    measured = folder / "measured.html"
    measured.write_text(page.read_text().replace("</body>", MEASURES + "</body>"))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=1200,900"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", measured.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None, done.stdout[:2000]
    return json.loads(title.group(1))


@pytest.mark.slow
def test_a_browser_shows_the_page_with_bars_as_long_as_their_parts(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    report.write_html(page, conformance_page.page(made()))
    seen = in_browser(page, tmp_path)
    tensor, linalg = sorted(seen["widths"].values())[::-1]
    assert tensor == pytest.approx([1], abs=0.01)
    assert linalg == pytest.approx([1 / 3] * 3, abs=0.01)
    assert not seen["wide"]  # nobody has to scroll sideways
    assert seen["rows"] > 12
