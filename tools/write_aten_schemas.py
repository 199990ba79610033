"""Write the schemas of ATen's functional operators to src/bringup/ir/aten_schemas.json.

Run it with the torch that bringup is built for; `ir.aten_schemas()` reads the file where there is
no torch. Usage: python tools/write_aten_schemas.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch

from bringup.compiler.aten import operator_of
from bringup.compiler.schema import signature_of

TARGET = Path(__file__).parents[1] / "src" / "bringup" / "ir" / "aten_schemas.json"
PLAIN = (bool, int, float, str, type(None))


def main() -> None:
    """Write the file."""
    operators: dict[str, dict[str, Any]] = {}
    for name in sorted({full.partition(".")[0] for full in _all_names()}):
        packet = getattr(torch.ops.aten, name.partition("::")[2])
        overloads = {key: _facts(getattr(packet, key)) for key in packet.overloads()}
        kept = {key: facts for key, facts in overloads.items() if facts is not None}
        if kept:
            operators[name] = kept
    text = json.dumps({"torch": torch.__version__.partition("+")[0], "operators": operators})
    TARGET.write_text(text.replace('}}, "aten::', '}},\n"aten::') + "\n")
    print(f"{TARGET}: {len(operators)} operators, {len(text) // 1024} KiB")


def _all_names() -> list[str]:
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    return [name for name in names if _is_public(name) or _is_core(name)]


def _is_public(name: str) -> bool:
    plain = name.partition("::")[2].partition(".")[0]
    return not plain.startswith("_") and not plain.endswith("_")


def _is_core(name: str) -> bool:
    packet = getattr(torch.ops.aten, name.partition("::")[2].partition(".")[0])
    return any(torch.Tag.core in getattr(packet, key).tags for key in packet.overloads())


def _facts(overload: Any) -> dict[str, Any] | None:
    """One overload as JSON; None for one that writes its arguments or computes no tensor."""
    schema, operator = overload._schema, operator_of(overload)
    returned = [str(item.type) for item in schema.returns]
    if operator.mutates or not returned or not set(returned) <= {"Tensor", "List[Tensor]"}:
        return None
    parameters = []
    for argument, slot in zip(schema.arguments, signature_of(overload), strict=True):
        default = argument.default_value
        if not _is_plain(default):
            return None
        facts: dict[str, Any] = {"name": argument.name, "type": str(argument.type)}
        if argument.kwarg_only:
            facts["keyword_only"] = True
        if slot.has_default:
            facts["default"] = default
        if argument.N:
            facts["size"] = argument.N
        if argument.N and re.search(rf"SymInt\[\d+\]\??\s{argument.name}\b", str(schema)):
            facts["symbolic"] = True  # torch repeats a single number for int[2], not for SymInt[2]
        parameters.append(facts)
    found: dict[str, Any] = {"parameters": parameters, "outputs": operator.output_count}
    if operator.aliases:
        found["aliases"] = sorted(operator.aliases)
    if operator.random:
        found["random"] = True
    return found


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, PLAIN)


if __name__ == "__main__":
    main()
