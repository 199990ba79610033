"""The instruction sets of this processor, for other machines' binaries without a compiler."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from bringup.jit.files.elf import this_machine

# Where the macro that a compiler predefines is not spelled like the kernel's name of the feature.
_KERNEL_NAMES = {
    "bmi": "bmi1", "lahfsahf": "lahf_lm", "lzcnt": "abm", "pclmul": "pclmulqdq",
    "prfchw": "3dnowprefetch", "rdrnd": "rdrand", "sha": "sha_ni", "sse3": "pni",
    "dotprod": "asimddp", "fp16vectorarithmetic": "asimdhp", "matmulint8": "i8mm",
    "bf16vectorarithmetic": "bf16",
}  # fmt: skip


@cache
def features() -> frozenset[str]:
    """Return the processor's features in the words of /proc/cpuinfo, which may be none."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in {"flags", "Features"}:
                    return frozenset(value.split())
    except OSError:
        return frozenset()
    return frozenset()


def required_features(isa: Iterable[str]) -> tuple[str, ...]:
    """Return the features of this machine that code with these predefined macros may use."""
    spelled = {feature.replace("_", ""): feature for feature in features()}
    found = set()
    for macro in isa:
        name = macro.partition(" ")[0].replace("_", "").lower().removeprefix("armfeature")
        feature = _KERNEL_NAMES.get(name) or spelled.get(name)
        if feature in features():
            found.add(feature)
    return tuple(sorted(filter(None, found)))


def incompatibility_reason(machine: str, required: Iterable[str]) -> str:
    """Return why code for this machine cannot run here, or ""."""
    if machine and machine != this_machine():
        return f"it was built for {machine}, this machine is {this_machine()}"
    if missing := sorted(set(required) - features()):
        return f"it needs {', '.join(missing)}, which this machine's processor does not have"
    return ""
