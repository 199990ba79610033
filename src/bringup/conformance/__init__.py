"""Is a device right (`run_conformance`), what is wrong in a model on it (`compare`), and what does
the model need of it (`coverage`)?
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
