"""Is a device right, and what does a model need of it?

`compare` runs a model on two devices or in two forms, and names the operator or module that is
wrong on equal inputs.
"""

from __future__ import annotations

from bringup.conformance._compare import Comparison, ResultDifference, compare
from bringup.conformance._deviation import Deviation
from bringup.conformance._operators import OperatorDifference, Watched
from bringup.conformance._paths import Place

__all__ = [
    "Comparison",
    "Deviation",
    "OperatorDifference",
    "Place",
    "ResultDifference",
    "Watched",
    "compare",
]
