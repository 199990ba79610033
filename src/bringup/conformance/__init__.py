"""Is a device right, and what does a model need of it?

`compare` runs a model on two devices or in two forms, and names the operator or module that is
wrong on equal inputs. `coverage` lists the operators that a model needs, and where they run.
"""

from __future__ import annotations

from bringup.conformance._compare import Comparison, ResultDifference, compare
from bringup.conformance._coverage import Coverage, Need, Support, coverage
from bringup.conformance._deviation import Deviation
from bringup.conformance._operators import OperatorDifference, Watched
from bringup.conformance._paths import Place

__all__ = [
    "Comparison",
    "Coverage",
    "Deviation",
    "Need",
    "OperatorDifference",
    "Place",
    "ResultDifference",
    "Support",
    "Watched",
    "compare",
    "coverage",
]
