"""`check`: its report, and how the outcomes of samples become one row."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from bringup.ops.custom.custom_op import CustomOperator
from bringup.ops.kernel.kernel_op import define_again, definition_of
from bringup.ops.schema.operator_facts import facts_of, find_overload
from bringup.ops.validation import basic_checks, gradient_checks, sanitized
from bringup.ops.validation.basic_checks import CheckFunction, Failed, NotApplicable, Subject
from bringup.ops.validation.samples import Sample, Samples, generate, read

CHECKS: dict[str, CheckFunction] = {**basic_checks.CHECKS, **gradient_checks.CHECKS}


class CheckOutcome(Enum):
    """What came of one check."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class CheckRow:
    """One check.

    Attributes:
        name: of the check.
        outcome: what came of it.
        reason: why it failed or does not apply, or "".
    """

    name: str
    outcome: CheckOutcome
    reason: str = ""


@dataclass(frozen=True)
class CheckReport:
    """What `check` found.

    Attributes:
        operator: `namespace::name`.
        samples: how many calls were checked.
        rows: one for each check, in a fixed order.
    """

    operator: str
    samples: int
    rows: tuple[CheckRow, ...]

    @property
    def failures(self) -> tuple[CheckRow, ...]:
        """Return the checks that failed."""
        return tuple(row for row in self.rows if row.outcome is CheckOutcome.FAIL)

    def row(self, name: str) -> CheckRow:
        """Return the check of that name. Raises `KeyError` listing the names."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no check {name!r}; there are {', '.join(r.name for r in self.rows)}")

    def require(self) -> CheckReport:
        """Return the report; raises `AssertionError` listing the failures where there are any."""
        if not self.failures:
            return self
        lines = "\n".join(f"  {row.name}: {row.reason}" for row in self.failures)
        raise AssertionError(
            f"{self.operator}: {len(self.failures)} of {len(self.rows)} checks failed on "
            f"{self.samples} sample{'s'[: self.samples != 1]}:\n{lines}"
        )

    def __str__(self) -> str:
        wide = max((len(row.name) for row in self.rows), default=0)
        return "\n".join(
            f"{row.name:<{wide}}  {row.outcome.value:<14}  {row.reason}".rstrip()
            for row in self.rows
        )

    def _repr_html_(self) -> str:
        from bringup.report import Column, Table

        columns = [Column("check"), Column("outcome"), Column("why")]
        rows = [(row.name, row.outcome.value, row.reason) for row in self.rows]
        return Table(self.operator, columns, [*rows])._repr_html_()


def check(
    op: Any,
    samples: Samples | None = None,
    *,
    skip: Iterable[str] = (),
    watch: Callable[[str], object] | None = None,
    sanitize: bool = False,
) -> CheckReport:
    """Call an operator in every way that torch may call it and compare what comes.

    Beside `torch.library.opcheck` and `torch.autograd.gradcheck`: hidden writes, also beside an
    argument's memory; results that share memory with arguments or each other; strides, offsets,
    expanded, channels-last and zero-size arguments; dtypes; gradients in any layout; other sizes
    than the sample's; compiled against eager; vmap against a loop; double backward and forward
    mode; cpu against the loaded driver's device; the callable against the operator in `torch.ops`.

    Args:
        op: what `kernel_op` or `custom_op` returned, an operator of `torch.ops`, or its name.
        samples: a list of argument tuples, or of `(args, kwargs)`; or a function that returns one.
            Small tensors on cpu, floating ones preferably float64 or float32. Where it is None,
            samples of a kernel operator are made from its schema and contract.
        skip: names of checks to leave out; their rows say so.
        watch: called with the name of each check before it runs, and first with "the samples
            themselves": a kernel that ends the process takes the report with it.
        sanitize: whether a kernel operator's kernel is first run under the address and the
            undefined-behaviour sanitizer, built with them, in a process of its own. What they find
            is the row "sanitizers", with the line of the source, and no other check runs then.

    Raises:
        SchemaError: there is no such operator.
        ValueError: samples are missing and cannot be made, or are no arguments, or `skip` names no
            check.
        TypeError: `op` is no operator.
    """
    subject, skip = subject_of(op), frozenset(skip)
    if unknown := sorted(set(skip) - set(CHECKS)):
        raise ValueError(f"skip: no check {unknown[0]!r}; there are {', '.join(CHECKS)}")
    given = generate(subject.name) if samples is None else read(subject.name, samples)
    on_check = watch or (lambda name: None)
    first = (_sanitized(subject, given),) if sanitize else ()
    if any(row.outcome is CheckOutcome.FAIL for row in first):
        return CheckReport(subject.name, len(given), first)
    on_check("the samples themselves")
    _must_run(subject, given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of vmap's loop, of gradcheck's float32
        rows = tuple(
            CheckRow(name, CheckOutcome.NOT_APPLICABLE, "skipped")
            if name in skip
            else _row(name, function, subject, given, on_check)
            for name, function in CHECKS.items()
        )
    return CheckReport(subject.name, len(given), (*first, *rows))


def in_child(given: str, said: str) -> None:
    """Check the kernel operator in the file `given`, with the checks that touch memory; write the
    name of each check to the file `said`.
    """

    def write(name: str) -> None:
        with Path(said).open("a") as file:
            file.write(f"{name}\n")

    parts, samples = pickle.loads(Path(given).read_bytes())
    calls = [(sample.args, sample.kwargs) for sample in samples]
    check(define_again(**parts), calls, skip=set(CHECKS) - {*sanitized.CHECKS}, watch=write)
    write("the end")


def _sanitized(subject: Subject, samples: Sequence[Sample]) -> CheckRow:
    definition = definition_of(subject.name)
    if definition is None:
        raise ValueError(f"{subject.name}: sanitize=True is for kernel operators")
    found = sanitized.finding(definition, samples)
    return CheckRow(sanitized.NAME, CheckOutcome.FAIL if found else CheckOutcome.PASS, found)


def subject_of(op: Any) -> Subject:
    """Return what is known of an operator. Raises what `check` says of one that is none."""
    if isinstance(op, str):
        overload: Any = find_overload(op)
        definition = definition_of(op)
        fast = definition.function if definition is not None else None
    elif isinstance(op, torch._ops.OpOverloadPacket):
        overload, fast = op.default, None
    elif isinstance(op, torch._ops.OpOverload):
        overload, fast = op, None
    else:
        overload = getattr(op, "overload", None) or getattr(op, "_opoverload", None)
        fast = op
    if not isinstance(overload, torch._ops.OpOverload):
        raise TypeError(
            "expected an operator (of kernel_op, custom_op or torch.ops) or its name, "
            f"got {type(op).__name__}"
        )
    flatten = None
    if isinstance(op, CustomOperator) and op._structure is not None:
        flatten = op._structure.flatten
    facts = facts_of(overload)
    return Subject(facts.name, overload, fast, facts, flatten)


def _must_run(subject: Subject, samples: Sequence[Sample]) -> None:
    """Refuse a sample that the operator does not take."""
    for index, sample in enumerate(samples):
        copy = subject.flat(sample).copied()
        try:
            subject.overload(*copy.args, **copy.kwargs)
        except Exception as error:
            raise ValueError(
                f"{subject.name}: sample {index} cannot be called ({type(error).__name__}: "
                f"{error}); give arguments that the operator takes"
            ) from error


def _row(
    name: str,
    function: CheckFunction,
    subject: Subject,
    samples: Sequence[Sample],
    on_check: Callable[[str], object],
) -> CheckRow:
    """Return one check over all samples: it fails if one does, and applies if it applies to one."""
    on_check(name)
    passed, excuses = False, []
    for index, sample in enumerate(samples):
        given = sample if function is basic_checks.fast_and_slow else subject.flat(sample)
        try:
            function(subject, given)
        except NotApplicable as excuse:
            excuses.append(str(excuse))
        except Exception as error:
            what = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
            return CheckRow(name, CheckOutcome.FAIL, f"sample {index}: {what}")
        else:
            passed = True
    if passed:
        return CheckRow(name, CheckOutcome.PASS)
    return CheckRow(name, CheckOutcome.NOT_APPLICABLE, excuses[0])
