"""Is a device right, and what does a model need of it?

`compare` runs a model on two devices or in two forms, and names the operator or module that is
wrong on equal inputs. `coverage` lists the operators that a model needs, and where they run.
`run_conformance` tests a driver, the runtime and torch's own samples against the CPU.
"""

from __future__ import annotations

from bringup.conformance import compare_page, conformance_page, coverage_page
from bringup.conformance._cases import CaseResult
from bringup.conformance._compare import Comparison, ResultDifference, compare
from bringup.conformance._coverage import Coverage, Need, Support, coverage
from bringup.conformance._deviation import Deviation
from bringup.conformance._module_paths import Place
from bringup.conformance._operators import OperatorDifference, Watched
from bringup.conformance._suite import Conformance, Score, families, read_baseline, run_conformance

__all__ = [
    "CaseResult", "Comparison", "Conformance", "Coverage", "Deviation", "Need",
    "OperatorDifference", "Place", "ResultDifference", "Score", "Support", "Watched", "compare",
    "coverage", "families", "read_baseline", "run_conformance",
]  # fmt: skip

# A notebook shows what came out as the commands' pages.
for _kind, _page in (
    (Comparison, compare_page.page),
    (Conformance, conformance_page.page),
    (Coverage, coverage_page.page),
):
    setattr(_kind, "_repr_html_", lambda self, page=_page: page(self)._repr_html_())  # noqa: B010
