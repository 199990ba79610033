"""`check(sanitize=True)`: the checks that touch memory, with the kernel built by the compiler's
sanitizers, in a process of its own: their runtime has to be there from its start.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from bringup import jit
from bringup._processes import ending, output_within, started
from bringup.ops.validation.samples import Sample

NAME = "sanitizers"
CHECKS = ("hidden writes", "strides", "offsets", "expanded", "channels-last", "zero-size", "dtypes")
_CHILD = "import sys; from bringup.ops.validation import report; report.in_child(*sys.argv[1:])"
_LIMIT = 600.0  # seconds
_ACCESS = re.compile(r"^(READ|WRITE) of size (\d+)", re.MULTILINE)
_FRAME = re.compile(r"^\s*#\d+ \S+ in .*?([^\s/:]+:\d+)(?::\d+)?\s*$", re.MULTILINE)
_ADDRESS = re.compile(r"ERROR: AddressSanitizer: (\S+)")
_UNDEFINED = re.compile(r"^(?:.*/)?([^/\s:]+:\d+)(?::\d+)?: runtime error: (.*)$", re.MULTILINE)


def finding(definition: Any, samples: Sequence[Sample]) -> str:
    """Return what the sanitizers say of a kernel operator in one sentence, or "". Raises
    `CompileError`, and `RuntimeError` where the process ended otherwise.
    """
    template = definition.template
    if template.source.is_library:
        raise ValueError(f"{definition.schema.qualified_name}: a library is built already")
    target = jit.targets()["cpu"]
    assert isinstance(target, jit.GnuTarget)
    jit.toolchain()  # which compiler's runtime it is
    preload = target.sanitizer_runtime("address")
    with tempfile.TemporaryDirectory() as folder:
        given, said = Path(folder) / "given", Path(folder) / "said"
        given.write_bytes(pickle.dumps((_parts(definition), list(samples))))
        environment = {
            **os.environ,
            "LD_PRELOAD": preload,
            "ASAN_OPTIONS": "detect_leaks=0",
            "BRINGUP_JIT_DEBUG": "address,undefined,line_info",
        }
        command = [sys.executable, "-c", _CHILD, str(given), str(said)]
        with started(command, environment=environment, output=subprocess.PIPE) as child:
            output, in_time = output_within(child, _LIMIT)
        lines = said.read_text().splitlines() if said.exists() else []
    text = output.decode(errors="replace")
    running = lines[-1] if lines else "loading the operator"
    if sentence := sentence_of(text, running):
        return sentence
    if in_time and child.returncode == 0:
        return ""
    how = ending(child.returncode) if in_time else f"no answer after {_LIMIT:g} s"
    raise RuntimeError(f"the sanitized run ended with {how} in {running!r}:\n{text[-2000:]}")


def sentence_of(text: str, running: str) -> str:
    if undefined := _UNDEFINED.search(text):
        return f"{undefined[2]}, at {undefined[1]}, in {running!r}"
    address = _ADDRESS.search(text)
    if address is None:
        return ""
    access, frame = _ACCESS.search(text), _FRAME.search(text)
    what = f"it {access[1].lower()}s {access[2]} bytes that are not there" if access else ""
    where = f", at {frame[1]}" if frame else ""
    return f"{what or 'it fails'} ({address[1]}){where}, in {running!r}"


def _parts(definition: Any) -> dict[str, Any]:
    template = definition.template
    given = {one.name: getattr(template, one.name) for one in fields(template) if one.init}
    if template.path is not None:  # the source says its text itself
        given["text"] = None
    return {
        "schema": definition.schema.text,
        "template": {k: dict(v) if hasattr(v, "items") else v for k, v in given.items()}
        | {"tiles": [dict(tile) for tile in template.tiles]},
        "rest": {
            name: getattr(definition, name)
            for name in ("outputs", "checks", "grid", "work_items", "strided", "release_gil")
        },
    }
