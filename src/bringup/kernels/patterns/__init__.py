"""The pass library: rewrites of transformer graphs onto the shipped operators and cheaper ATen.

`passes.load_pass_plugins()` loads them wherever passes run, unless `BRINGUP_PASS_LIBRARY` is 0 (it
calls `register_patterns()`; importing this package registers nothing). They run on ATen as AOT
autograd writes it, in the stage `AFTER_INFER_SHAPE`, in the order of `LIBRARY` and after the passes
that others register with the default priority. Each is checked numerically over real models in
`tests/unit/kernels/test_zoo.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.kernels.patterns.activations import BiasGelu, ErfGelu, SwiGlu, TanhGelu
from bringup.kernels.patterns.attention import Attention, CausalMask, GroupedHeads
from bringup.kernels.patterns.cleanup import CollapseViews, DropCopies, FoldFactories, MergeEqual
from bringup.kernels.patterns.linear import MergeProjections, PackLinear
from bringup.kernels.patterns.norms import AddLayerNorm, AddRmsNorm, NarrowRmsNorm, RmsNorm
from bringup.kernels.patterns.rotary import Rotary
from bringup.passes import FusionBasePass
from bringup.passes.registry.registering import register_in_order

__all__ = ["LIBRARY", "register_patterns"]

LIBRARY: tuple[type[FusionBasePass], ...] = (
    MergeEqual, FoldFactories, DropCopies, RmsNorm, NarrowRmsNorm, AddRmsNorm, AddLayerNorm, Rotary,
    SwiGlu, TanhGelu, ErfGelu, Attention, GroupedHeads, CausalMask, MergeProjections, PackLinear,
    BiasGelu,  # what is not packed
    CollapseViews,
)  # fmt: skip
"""The passes in the order in which they run; each is registered as `Library` + its class name."""


def register_patterns(names: Sequence[str] | None = None) -> tuple[str, ...]:
    """Register passes of the library and return the names they are registered under.

    Args:
        names: class names (`RmsNorm`) of the ones to register; None for all. Registering one again
            is free.

    Raises `ValueError` for a name that the library does not have, or that another pass has taken.

    Examples:
        >>> from bringup import kernels
        >>> kernels.register_patterns(["RmsNorm"])
        ('LibraryRmsNorm',)
    """
    return register_in_order(LIBRARY, names, prefix="Library", owner="the pass library")
