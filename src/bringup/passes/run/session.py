"""A graph of Python in one run of one pass, whose flow is in native/engine/run/session.cpp."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from bringup import ir, settings
from bringup.errors import PassError, PassFatalError, PassSkipException, WrongRewriteError
from bringup.ir.edits import Committer
from bringup.ir.inference import shapes_withheld
from bringup.ir.outputs import on_copies
from bringup.passes.definition.base import FusionBasePass, patterns_of
from bringup.passes.definition.context import PassContext
from bringup.passes.definition.expressions import configure
from bringup.passes.definition.stages import PassStage
from bringup.passes.engine import GraphCore, PlacedMatchCore, ProgramCore, native
from bringup.passes.matching.native_matcher import FoundMatch
from bringup.passes.matching.program import Program, program_of
from bringup.passes.patterns.convert import as_graph
from bringup.passes.patterns.match import MatchResult
from bringup.passes.patterns.pattern import Pattern
from bringup.passes.registry.descriptor import PassDescriptor
from bringup.passes.report import NearMiss, PassResult, PassStatus
from bringup.passes.rewrite.rewriter import bind_replacement
from bringup.passes.run.controls import Controls
from bringup.passes.run.dump import dump
from bringup.passes.run.events import EventKind, PassEvent, emit, profiled
from bringup.passes.run.library_host import LibraryHost
from bringup.passes.run.verify import Verifier

_LOG = settings.logger("passes")
_STATUSES = range(-(2**63), 2**63)
_SKIP, _FAILURE, _WRONG, _FATAL = range(4)  # as the engine's Verdict counts them


class Session:
    """One run of one pass on one graph, edited in place, as its host: the engine calls it.

    `commit` is handed the edits that stay. The engine asks `has_listeners`, `is_limited` (the
    number of rewrites), `is_verified` and `can_copy` (`copy_outputs`) once.
    """

    # The candidate: what hooks are given, what reports call it, the nodes that are replaced.
    _subject: MatchResult | ir.Node
    _pattern: str
    _nodes: tuple[ir.Node, ...] = ()

    def __init__(
        self,
        graph: ir.Graph,
        descriptor: PassDescriptor,
        options: Mapping[str, object],
        controls: Controls,
        commit: Committer | None,
        *,
        has_listeners: bool = False,
    ) -> None:
        self.graph = graph
        self.error: Exception | None = None
        self._descriptor = descriptor
        self.options = options
        self._controls = controls
        self._commit = commit
        self.has_listeners = has_listeners
        self.is_limited = controls.limit is not None
        self.is_verified = controls.verify
        dialect = graph.dialect
        self._copy_operator = None if dialect is None else dialect.copy_operator
        self.can_copy = self._copy_operator is not None
        self._before = str(graph) if controls.dump is not None else ""
        self.traceback = ""
        self._described = ""  # the failure before, which the context still has
        self._fusions = 0
        self._captures: list[str] = []
        self._refusals: list[NearMiss] = []
        self._around = ExitStack()
        self._transaction: AbstractContextManager[Sequence[ir.Edit]] | None = None
        self._verifier: Verifier | None = None
        self._snapshot: list[tuple[object, ...]] | None = None
        self._programs: list[Program] = []
        self._match: FoundMatch | None = None
        self._is_counted = False

    # Beginning and end

    def begin(self, instance_id: int) -> None:
        descriptor, graph = self._descriptor, self.graph
        self._instance_id = instance_id
        self._context = PassContext(
            descriptor.pass_name,
            descriptor.stage,
            self.options,
            instance_id,
            self._count_fusion,
            self._note_refusal,
        )
        withheld = descriptor.stage is PassStage.BEFORE_INFER_SHAPE
        self._around.enter_context(profiled(f"bringup::pass::{descriptor.pass_name}"))
        self._around.enter_context(shapes_withheld(graph, withheld))
        self._around.enter_context(ir.use_dialect(graph.dialect))
        transaction = graph.transaction(descriptor.pass_name)
        self._edits = transaction.__enter__()
        self._transaction = transaction

    def take_instance(self, instance: FusionBasePass | None) -> None:
        """Take the fresh instance of the pass; None of one of a library."""
        self._instance: Any = instance
        if instance is not None:
            instance.instance_id = self._instance_id
        if self.has_listeners:
            operators = sorted({node.op_type for node in self.graph.nodes})
            self._emit(EventKind.CREATED, pass_kind=self._descriptor.kind, operators=operators)
        if self._controls.verify:
            self._verifier = Verifier(
                self._descriptor.pass_name, self.graph.dialect, self._rewrites_variant
            )

    def settle(self) -> None:
        """Put the graph in order; raise unless the edits may stay."""
        ir.topological_sort(self.graph)
        self.graph.settle_layouts()

    def copy_outputs(self, outputs: Sequence[int]) -> None:
        """Let results lie in a copy of their memory, shared with each other as before."""
        assert self._copy_operator is not None, "the engine asks `can_copy`"
        results = [self.graph.outputs[output] for output in outputs]
        copies = on_copies(self.graph, results, self._copy_operator)
        for output, copy in zip(outputs, copies, strict=True):
            ir.replace_output(self.graph, output, copy)

    def commit(self) -> None:
        if self._edits and self._commit is not None:
            self._commit(self._edits)
        transaction, self._transaction = self._transaction, None
        assert transaction is not None, "begin() opened it"
        transaction.__exit__(None, None, None)
        self._around.close()

    def rollback(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            error = _UndoError()
            transaction.__exit__(_UndoError, error, None)
        self.end_match()
        self._around.close()

    def finish(self, result: PassResult) -> None:
        result.traceback = self.traceback
        result.refused += len(self._refusals)
        result.near_misses.extend(self._refusals[:1])
        if self._verifier is not None:
            result.verified = self._verifier.verified
            result.unverified = self._verifier.unverified
        limit, folder = self._controls.limit, self._controls.dump
        if limit is not None and self._is_counted and not result.edits:
            limit.give_back(self._descriptor.pass_name, self.graph.name)
        if folder is not None and (result.edits or result.status is PassStatus.FAILED):
            dump(folder, result, self._before, self.graph)
        if self.has_listeners:
            self._emit(
                EventKind.EXECUTED,
                status=result.status.value,
                seconds=result.seconds,
                matches=result.matches,
                nodes=len(self.graph),
                inputs=[str(value.known_desc or "unknown") for value in self.graph.inputs],
                outputs=[str(value.known_desc or "unknown") for value in self.graph.outputs],
            )
        if not self._controls.quiet:
            _LOG.info("%s", result)
        self._context.expire()

    def library_host(self) -> LibraryHost:
        return LibraryHost(self.graph.dialect)

    def undo_since(self, notes: int) -> None:
        self.graph._undo_since(notes)

    # A graph pass

    def before_run(self) -> None:
        """Note what the graph computes, where the pass is verified."""
        assert self._verifier is not None
        self._snapshot = self._verifier.snapshot(self.graph)

    def run(self) -> int:
        """Call the hook of a graph pass; its status."""
        return _status(self._instance.run(self.graph, self._context), self._descriptor.pass_name)

    def after_run(self) -> None:
        """Compare what the graph computes now."""
        if self._snapshot is not None and self.graph.is_edited:
            assert self._verifier is not None
            self.settle()
            self._verifier.check_graph(self.graph, self._snapshot)

    def fusions(self) -> int:
        return self._fusions

    # A pass that is driven by its hooks

    def patterns(self) -> list[ProgramCore]:
        return self._compiled(patterns_of(self.graph, self._instance))

    def take_patterns(self, patterns: list[Pattern]) -> list[ProgramCore]:
        names = [pattern.name for pattern in patterns]
        for name in names:
            if names.count(name) > 1:
                raise PassError(f"two patterns are called {name!r}")
        for pattern in patterns:
            configure(pattern, self.graph.dialect, None)
        return self._compiled(patterns)

    def _compiled(self, patterns: list[Pattern]) -> list[ProgramCore]:
        self._programs = [program_of(pattern) for pattern in patterns]
        return [program.core for program in self._programs]

    def take_match(
        self,
        search: int,
        core: PlacedMatchCore,
        nodes: tuple[ir.Node, ...],
        inputs: tuple[ir.Value | None, ...],
        outputs: tuple[ir.Value, ...],
    ) -> None:
        """Offer a match of pattern number `search` to the hooks; the one before expires."""
        self.end_match()
        match = FoundMatch(self._programs[search], core, self.graph, nodes, inputs, outputs)
        self._subject = self._match = match
        self._pattern, self._nodes = match.pattern_name, nodes
        if self.has_listeners:
            self._captures = [value.name for value in match.captured()]
            self._emit_matched()

    def take_node(self, node: ir.Node) -> None:
        self._subject, self._pattern, self._nodes = node, node.op_type, (node,)
        self._emit_matched()

    def end_search(self) -> None:
        self.end_match()

    def end_match(self) -> None:
        """Let the match expire that was offered last."""
        if self._match is not None:
            self._match.expire()
        self._match = None

    def meets_requirements(self) -> bool:
        return bool(self._call("meet_requirements"))

    def make_replacement(self) -> ir.Graph:
        where = f"{type(self._instance).__qualname__}.replacement"
        self._replacement = as_graph(self._call("replacement"), where)
        return self._replacement

    def take_replacement(self, replacement: ir.Graph) -> None:
        self._replacement = replacement

    def may_rewrite(self) -> bool:
        """Return whether the limit of rewrites lets one more happen; if so it is counted."""
        limit = self._controls.limit
        assert limit is not None, "asked only where `is_limited`"
        taken = limit.take(self._descriptor.pass_name, self.graph.name, self._names)
        self._is_counted = taken and not self._nodes
        return taken

    def prepare_replacement(self) -> GraphCore:
        """Return the replacement, in order, bound and verified, as the engine has it."""
        graph, replacement = self.graph, self._replacement
        bind_replacement(graph, replacement)
        if self._verifier is not None:
            inputs: Sequence[ir.Value | None]  # None where an optional part is absent
            outputs: Sequence[ir.Value]
            if self._match is not None:
                inputs, outputs = self._match.inputs, self._match.outputs
            else:
                wanted = len(replacement.outputs)
                inputs, outputs = native.values_around(graph.core, self._nodes[0], wanted)
            if len(replacement.outputs) == len(outputs):
                where = f"{self._pattern} ({', '.join(self._names)})"
                self._verifier.check(where, self._nodes, inputs, outputs, replacement)
        return replacement.core

    @property
    def _names(self) -> list[str]:
        """Return what the nodes are called, or were before they were replaced."""
        return [node._name for node in self._nodes]

    # What happens

    def _emit_matched(self) -> None:
        self._emit(
            EventKind.MATCHED, pattern=self._pattern, nodes=self._names, captures=self._captures
        )

    def report_rewrite(self, made: tuple[ir.Node, ...]) -> None:
        self._emit(
            EventKind.REPLACED,
            pattern=self._pattern,
            nodes=self._names,
            captures=self._captures,
            new_nodes=[node.name for node in made],
        )

    def classify_error(self, error: BaseException) -> tuple[int, int, str]:
        """Return what an exception means, its status, and its text; raises what is no failure."""
        if not isinstance(error, Exception):
            self._context.expire()
            raise error
        kind = _FAILURE
        if isinstance(error, PassSkipException):
            kind = _SKIP
        elif isinstance(error, PassFatalError):
            kind = _FATAL
        elif isinstance(error, WrongRewriteError):
            kind = _WRONG
        status = getattr(error, "status", 1)
        is_code = isinstance(status, int) and status != 0 and status in _STATUSES
        return kind, status if is_code else 1, str(error)

    def describe(self, error: Exception) -> str:
        """Put an error with its traceback into context and result; its text."""
        self.error = error
        text = f"{type(error).__name__}: {error}"
        place = _user_frame(error)
        said = self._context.get_error_message()
        if said and said != self._described:
            text = f"{said} ({text})"
        self.traceback = "".join(traceback.format_exception(error)).rstrip()
        text = f"{text} [{place}]" if place else text
        self._described = f"{text}\n{self.traceback}"
        self._context.set_error_message(self._described)
        self._emit(EventKind.FAILED, message=text)
        return text

    def _call(self, hook: str) -> Any:
        return self._instance.hooks[hook](self._instance, self._subject, self._context)

    def _count_fusion(self, old: Sequence[str], new: Sequence[str]) -> None:
        self._fusions += 1
        name = self._context.get_pass_name()
        self._emit(EventKind.REPLACED, pattern=name, nodes=list(old), new_nodes=list(new))

    def _note_refusal(self, node: str, reason: str) -> None:
        self._refusals.append(NearMiss(self._context.get_pass_name(), node, f"skipped: {reason}"))

    def _rewrites_variant(self, variant: ir.Graph) -> bool:
        """Return whether this pass also rewrites another graph, which it then has."""
        quiet = Controls(quiet=True)
        session = Session(variant, self._descriptor, self.options, quiet, None)
        result = result_of(native.run_session(session, self._descriptor), variant)
        session.finish(result)
        return result.status is not PassStatus.FAILED and result.matches > 0

    def _emit(self, kind: EventKind, **details: object) -> None:
        if not self.has_listeners:
            return
        descriptor = self._descriptor
        emit(
            PassEvent(
                kind,
                descriptor.pass_name,
                descriptor.version,
                descriptor.stage.name,
                self.graph.name,
                self._instance_id,
                details,
                descriptor.descriptor_key,
                self.graph.graph_id,
            )
        )


def result_of(facts: dict[str, Any], graph: ir.Graph) -> PassResult:
    facts["graph"] = graph.name
    facts["stage"] = PassStage(facts["stage"]).name
    facts["status"] = PassStatus(facts["status"])
    facts["near_misses"] = [NearMiss(*miss) for miss in facts["near_misses"]]
    return PassResult(**facts)


class _UndoError(Exception):
    """Lets a transaction or a savepoint undo its edits."""


def _status(returned: object, name: str) -> int:
    """Return a status: 0 for None, True and 0; bool is looked at before int, of which it is one."""
    if returned is None or returned is True:
        return 0
    if returned is False:
        raise PassError(f"run of {name!r} returned False")
    if not isinstance(returned, int):
        raise TypeError(
            f"run of {name!r} must return None, a bool or an int status, "
            f"got {type(returned).__name__} {returned!r}"
        )
    if returned not in _STATUSES:
        raise PassError(f"run of {name!r} returned status {returned}")
    return int(returned)


def _user_frame(error: Exception) -> str:
    """File and line of the innermost frame of the error that is not bringup's own."""
    own = __file__.rpartition("/passes/")[0]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(own):
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return ""
