"""One run of one pass on one graph, step by step; the engine decides which step comes next.

`native/engine/run/session.cpp` has the flow: what a failure means, what is undone, how often is
swept.
"""

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
from bringup.passes.definition.base import FusionBasePass, PatternFusionPass
from bringup.passes.definition.context import PassContext
from bringup.passes.definition.stages import PassStage
from bringup.passes.engine import native
from bringup.passes.patterns.convert import as_graph
from bringup.passes.registry.descriptor import PassDescriptor
from bringup.passes.report import NearMiss, PassResult, PassStatus
from bringup.passes.rewrite.rewriter import replace
from bringup.passes.run.controls import Controls
from bringup.passes.run.dump import dump
from bringup.passes.run.events import EventKind, PassEvent, emit, profiled
from bringup.passes.run.targets import PatternTargets, RewriteTarget
from bringup.passes.run.verify import Verifier

__all__ = ["Session", "result_of"]

_LOG = settings.logger("passes")
_STATUSES = range(-(2**63), 2**63)
_SKIP, _FAILURE, _WRONG, _FATAL = range(4)  # as the engine's Verdict counts them


class Session:
    """The steps of one session, which the engine calls.

    Args:
        graph: edited in place.
        descriptor: the pass.
        options: what the pass may read.
        controls: what else is asked for.
        commit: handed the edits that stay.
        has_listeners: whether anybody has subscribed to what happens.

    Attributes:
        error: that failed last.
        has_listeners: as given; the engine asks once.
        is_limited: whether the number of rewrites is limited; likewise.
        can_copy: whether `copy_outputs` can be asked for; likewise.
    """

    aliases: ir.AliasAnalysis  # after `prepare`
    _targets: PatternTargets | None = None  # of a pattern pass, after `prepare`
    _target: RewriteTarget  # the candidate that the steps are about

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
        self._options = options
        self._controls = controls
        self._commit = commit
        self.has_listeners = has_listeners
        self.is_limited = controls.limit is not None
        dialect = graph.dialect
        self._copy_operator = None if dialect is None else dialect.copy_operator
        self.can_copy = self._copy_operator is not None
        self._before = str(graph) if controls.dump is not None else ""
        self._traceback = ""
        self._fusions = 0
        self._captures: list[str] = []
        self._refusals: list[NearMiss] = []
        self._around = ExitStack()
        self._transaction: AbstractContextManager[Sequence[ir.Edit]] | None = None
        self._mark: tuple[int, int, int] | None = None
        self._verifier: Verifier | None = None
        self._made: tuple[ir.Node, ...] = ()
        self._searches = 0
        self._is_counted = False

    # Beginning and end

    def begin(self, instance_id: int) -> None:
        """Open the transaction."""
        descriptor, graph = self._descriptor, self.graph
        self._instance_id = instance_id
        self._context = PassContext(
            descriptor.pass_name,
            descriptor.stage,
            self._options,
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

    def take_instance(self, instance: FusionBasePass) -> None:
        """The fresh instance of the pass."""
        self._instance: Any = instance
        instance.instance_id = self._instance_id
        self._emit(EventKind.CREATED, pass_kind=self._descriptor.kind)
        if self._controls.verify:
            self._verifier = Verifier(
                self._descriptor.pass_name, self.graph.dialect, self._rewrites_variant
            )

    def settle(self) -> None:
        """Put the graph in order; raise unless the edits may stay."""
        ir.topological_sort(self.graph)
        self.graph.settle_layouts()

    def copy_outputs(self, outputs: Sequence[int]) -> None:
        """Let results lie in a copy of the memory that they have when the graph ends: they share it
        with each other as before, and with nothing else.
        """
        assert self._copy_operator is not None, "the engine asks `can_copy`"
        results = [self.graph.outputs[output] for output in outputs]
        copies = on_copies(self.graph, results, self._copy_operator)
        for output, copy in zip(outputs, copies, strict=True):
            ir.replace_output(self.graph, output, copy)

    def commit(self) -> None:
        """Hand the edits on and close the transaction."""
        if self._edits and self._commit is not None:
            self._commit(self._edits)
        transaction, self._transaction = self._transaction, None
        assert transaction is not None, "begin() opened it"
        transaction.__exit__(None, None, None)
        self._around.close()

    def rollback(self) -> None:
        """Close the transaction, if it is open, and undo its edits."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            _undo(transaction)
        if self._targets is not None:
            self._targets.end()
        self._around.close()

    def finish(self, result: PassResult) -> None:
        """Complete the result and report it to the listeners."""
        result.traceback = self._traceback
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
            self._emit_executed(result)
        if not self._controls.quiet:
            _LOG.info("%s", result)
        self._context.expire()

    # A graph pass

    def run(self) -> int:
        """Run a graph pass; its status."""
        before = None if self._verifier is None else self._verifier.snapshot(self.graph)
        status = _status(self._instance.run(self.graph, self._context), self._descriptor.pass_name)
        if status == 0 and before is not None and self.graph.is_edited:
            assert self._verifier is not None
            self.settle()
            self._verifier.check_graph(self.graph, before)
        return status

    def fusions(self) -> int:
        """How many fusions the hooks reported themselves."""
        return self._fusions

    # A pass that is driven by its hooks

    def prepare(self) -> int:
        """How many things it looks for."""
        self.aliases = ir.AliasAnalysis(self.graph)
        if isinstance(self._instance, PatternFusionPass):
            self._targets = PatternTargets(self.graph, self.aliases, self._instance)
        self._searches = 1 if self._targets is None else self._targets.count
        return self._searches

    def start(self, search: int) -> None:
        """Look for number `search` from here on."""
        if self._targets is not None:
            self._targets.start(search)

    def take_node(self, node: ir.Node) -> None:
        """The next candidate of a decompose pass: the engine walks over them."""
        self._target = RewriteTarget(node, node.op_type, (node,), node)

    def next(self) -> bool:
        """Go to the next match, if there is one."""
        assert self._targets is not None, "the engine has the nodes of a decompose pass"
        found = self._targets.next()
        if found is None:
            return False
        self._target = found
        return True

    def meets_requirements(self) -> bool:
        """What the hook says."""
        return bool(self._call("meet_requirements"))

    def make_replacement(self) -> None:
        """Ask the hook for the graph that takes the candidate's place."""
        where = f"{type(self._instance).__qualname__}.replacement"
        self._replacement = as_graph(self._call("replacement"), where)

    def may_rewrite(self) -> bool:
        """Whether the limit of rewrites lets one more happen; if so it is counted."""
        limit = self._controls.limit
        assert limit is not None, "nobody asks otherwise"
        names = self._target.names if self._searches else []
        taken = limit.take(self._descriptor.pass_name, self.graph.name, names)
        self._is_counted = taken and not self._searches
        return taken

    def replace(self) -> None:
        """Put the replacement where the candidate is."""
        target, replacement = self._target, self._replacement
        inputs, outputs = target.around(replacement)
        if self._verifier is not None and len(replacement.outputs) == len(outputs):
            where = f"{target.pattern} ({', '.join(target.names)})"
            self._verifier.check(where, target.nodes, inputs, outputs, replacement)
        self._made = replace(
            self.graph,
            replacement,
            inputs=inputs,
            outputs=outputs,
            nodes=target.nodes,
            before=target.before,
            hoist=target.hoist,
            aliases=self.aliases,
        )

    def refuse(self, reason: str) -> None:
        """The match was left alone."""
        assert self._targets is not None
        self._targets.refuse(self._target, reason)

    def near_miss(self) -> tuple[str, str, str, str, str, int, int] | None:
        """What came closest since `start`."""
        assert self._targets is not None
        self._targets.end()
        miss = self._targets.near_miss
        if miss is None:
            return None
        return (
            miss.pattern,
            miss.node,
            miss.reason,
            miss.expected,
            miss.got,
            miss.matched,
            miss.size,
        )

    def savepoint(self) -> None:
        """Mark the state that `rollback_to_savepoint` brings back."""
        self._mark = self.graph.mark()

    def release_savepoint(self) -> None:
        """Keep what was edited since the savepoint."""
        self._mark = None

    def rollback_to_savepoint(self) -> None:
        """Undo what was edited since the savepoint."""
        assert self._mark is not None, "savepoint() made it"
        if self.graph.roll_back_to(self._mark):
            self.aliases.rebuild()

    # What happens

    def report_match(self) -> None:
        """A candidate is offered to the hooks."""
        self._captures = self._target.captures
        self._emit(
            EventKind.MATCHED,
            pattern=self._target.pattern,
            nodes=self._target.names,
            captures=self._captures,
        )

    def report_replacement(self) -> None:
        """It was rewritten."""
        self._emit(
            EventKind.REPLACED,
            pattern=self._target.pattern,
            nodes=self._target.names,
            captures=self._captures,
            new_nodes=[node.name for node in self._made],
        )

    def classify_error(self, error: BaseException) -> tuple[int, int, str]:
        """What an exception means, its status, and its text; raises what is no failure."""
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
        if said and said != self._traceback:
            text = f"{said} ({text})"
        self._traceback = "".join(traceback.format_exception(error)).rstrip()
        text = f"{text} [{place}]" if place else text
        self._context.set_error_message(f"{text}\n{self._traceback}")
        self._emit(EventKind.FAILED, message=text)
        return text

    def _call(self, hook: str) -> Any:
        return self._instance.hooks[hook](self._instance, self._target.subject, self._context)

    def _count_fusion(self, old: Sequence[str], new: Sequence[str]) -> None:
        self._fusions += 1
        name = self._context.get_pass_name()
        self._emit(EventKind.REPLACED, pattern=name, nodes=list(old), new_nodes=list(new))

    def _note_refusal(self, node: str, reason: str) -> None:
        self._refusals.append(NearMiss(self._context.get_pass_name(), node, f"skipped: {reason}"))

    def _rewrites_variant(self, variant: ir.Graph) -> bool:
        """Whether this pass also rewrites another graph, which it then has."""
        quiet = Controls(quiet=True)
        session = Session(variant, self._descriptor, self._options, quiet, None)
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

    def _emit_executed(self, result: PassResult) -> None:
        self._emit(
            EventKind.EXECUTED,
            status=result.status.value,
            seconds=result.seconds,
            matches=result.matches,
            nodes=len(self.graph),
            inputs=[_shape_text(value) for value in self.graph.inputs],
            outputs=[_shape_text(value) for value in self.graph.outputs],
        )


def result_of(facts: dict[str, Any], graph: ir.Graph) -> PassResult:
    """A result from its fields as the engine gives them."""
    facts["graph"] = graph.name
    facts["stage"] = PassStage(facts["stage"]).name
    facts["status"] = PassStatus(facts["status"])
    facts["near_misses"] = [NearMiss(*miss) for miss in facts["near_misses"]]
    return PassResult(**facts)


class _UndoError(Exception):
    """Lets a transaction or a savepoint undo its edits."""


def _undo(edited: AbstractContextManager[object]) -> None:
    error = _UndoError()
    edited.__exit__(_UndoError, error, None)


def _status(returned: object, name: str) -> int:
    """None, True and 0 are success; bool is looked at before int, of which it is one."""
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


def _shape_text(value: ir.Value) -> str:
    desc = value.known_desc
    return "unknown" if desc is None else str(desc)


def _user_frame(error: Exception) -> str:
    """File and line of the innermost frame of the error that is not bringup's own."""
    own = __file__.rpartition("/passes/")[0]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(own):
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return ""
