"""Compile what the shipped passes put into transformers' models, for the wheels.

    python tools/prebuild_kernels.py FOLDER [MACHINE]

writes FOLDER/x86_64.bundle (or aarch64.bundle), for the oldest processors that a wheel is for:
`-DBRINGUP_PREBUILT_KERNELS=FOLDER` puts it into one. float32 and bfloat16, in "serve" and "max".
With another MACHINE than this one what was asked for here is cross compiled. To try it, not to ship
it: which features it needs can only be told there.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

MARCH = {"x86_64": "x86-64-v3", "aarch64": "armv8.2-a"}
_SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}


def models() -> list[tuple[Any, str]]:
    """Return small models of the kinds that the passes are for, and what each is given."""
    import transformers as hf

    one = {**_SMALL, "num_hidden_layers": 1}
    text = {**one, "vocab_size": 128}
    grouped = {**text, "num_key_value_heads": 2}
    return [
        (hf.BertModel(hf.BertConfig(**text)), "ids"),
        (hf.ModernBertModel(hf.ModernBertConfig(**one)), "ids"),
        (hf.LlamaForCausalLM(hf.LlamaConfig(**grouped)), "ids"),
        (hf.Qwen3ForCausalLM(hf.Qwen3Config(**grouped, head_dim=16)), "ids"),
        (hf.ViTModel(hf.ViTConfig(**one, image_size=32)), "pixels"),
    ]


def serve(model: Any, given: str, mode: str) -> None:
    """Run a compiled model on one row, on few and on many."""
    import torch

    torch._dynamo.reset()
    served = torch.compile(model.eval(), backend="bringup", mode=mode)
    with torch.inference_mode():
        for rows, length in ((1, 1), (1, 16), (40, 16)):
            if given == "ids":
                served(torch.randint(0, 100, (rows, length)))
            else:
                served(torch.randn(rows, 3, 32, 32, dtype=next(model.parameters()).dtype))


def compile_for(machine: str) -> None:
    """Let "cpu" mean the oldest processors of a kind."""
    from bringup import jit

    is_here = machine == platform.machine()
    compilers = ["c++", "g++"] if is_here else [f"{machine}-linux-gnu-g++"]
    oldest = jit.GnuTarget("cpu", compilers, march=MARCH[machine], get="", runs_here=is_here)
    jit.register_target(oldest, replace=True)


def main() -> None:
    """Build into a cache of its own, and export all of it."""
    machine = sys.argv[2] if len(sys.argv) > 2 else platform.machine()
    target = Path(sys.argv[1]) / f"{machine}.bundle"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"BRINGUP_CACHE_DIR": cache, "BRINGUP_JIT_AUTOTUNE": "0"}
        import torch

        from bringup import jit, kernels

        compile_for(platform.machine())
        with jit.record() as asked:
            for name in kernels.names():
                kernels.build(name)
            for model, given in models():
                serve(model, given, "serve")
                serve(model, given, "max")
                serve(model.bfloat16(), given, "serve")
        torch._dynamo.reset()
        compile_for(machine)
        built = jit.prebuild(asked.specs).check()
        exported = jit.cache().export_bundle(target, [one.key for one in built.outcomes])
    print(f"{target}: {len(exported)} kernels, {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
