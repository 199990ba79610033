"""One run of one pass on one graph: one fresh instance, one transaction, one result."""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Mapping, Sequence

from bringup import ir, settings
from bringup.errors import PassError, PassFatalError, PassSkipException, WrongRewriteError
from bringup.passes.base import DecomposePass, FusionBasePass, PatternFusionPass
from bringup.passes.context import PassContext
from bringup.passes.controls import Controls
from bringup.passes.descriptor import ErrorPolicy, PassDescriptor
from bringup.passes.dump import dump
from bringup.passes.events import EventKind, PassEvent, emit, is_wanted, profiled
from bringup.passes.report import PassResult, PassStatus
from bringup.passes.rewriting import Rewriting
from bringup.passes.verify import Verifier

__all__ = ["Session"]

_LOG = settings.logger("passes")
_NUMBERS = itertools.count(1)


class Session:
    """One run of one pass on one graph.

    Arguments:
        graph: edited in place.
        descriptor: the pass.
        options: what the pass may read.
        shared: which results of the graph may share memory with its inputs already.
        controls: what else is asked for.
    """

    def __init__(
        self,
        graph: ir.Graph,
        descriptor: PassDescriptor,
        options: Mapping[str, object],
        shared: frozenset[tuple[int, str]],
        controls: Controls = Controls(),  # noqa: B008 - it is frozen
    ) -> None:
        self.graph = graph
        self.descriptor = descriptor
        self.instance_id = next(_NUMBERS)
        self.context = PassContext(
            descriptor.pass_name, descriptor.stage, options, self.instance_id, self._count_fusion
        )
        self.result = PassResult(
            descriptor.pass_name,
            descriptor.stage.name,
            version=descriptor.version,
            graph=graph.name,
            instance_id=self.instance_id,
        )
        self.controls = controls
        self.verifier: Verifier | None = None
        self._is_heard = is_wanted() and not controls.quiet
        self._shared = shared
        self._options = options

    def execute(self, commit: ir.Committer | None) -> Exception | None:
        """Run the pass and return its error if it failed. `result` says how it went.

        Edits that succeeded are handed to `commit`; those of a pass that failed or was skipped are
        undone.
        """
        start = time.perf_counter()
        failure: Exception | None = None
        before = str(self.graph) if self.controls.dump is not None else ""
        try:
            with profiled(f"bringup::pass::{self.descriptor.pass_name}"):
                self._run_and_commit(commit)
        except PassSkipException as skip:
            self._end(PassStatus.SKIPPED, str(skip))
        except Exception as error:
            failure = error
            self._fail(error)
        self.result.seconds = time.perf_counter() - start
        if self.verifier is not None:
            self.result.verified = self.verifier.verified
            self.result.unverified = self.verifier.unverified
        if self.controls.dump is not None and (self.result.edits or failure is not None):
            dump(self.controls.dump, self.result, before, self.graph)
        self._tell_result()
        self.context.expire()
        return failure

    def emit(self, kind: EventKind, **details: object) -> None:
        """Tell the world what happened in this session."""
        if not self._is_heard:
            return
        emit(
            PassEvent(
                kind,
                self.descriptor.pass_name,
                self.descriptor.version,
                self.descriptor.stage.name,
                self.graph.name,
                self.instance_id,
                details,
            )
        )

    def tolerates(self, error: Exception) -> bool:
        """Whether an error in the hook of one match undoes and skips this match alone."""
        return self.descriptor.on_error is ErrorPolicy.SKIP and not isinstance(
            error, (PassFatalError, WrongRewriteError)
        )

    def may_rewrite(self, nodes: Sequence[str]) -> bool:
        """Whether the limit of rewrites lets one more happen; if so it is counted."""
        limit = self.controls.limit
        return limit is None or limit.take(self.descriptor.pass_name, self.graph.name, nodes)

    def record_error(self, error: Exception) -> str:
        """Put an error with its traceback into context and result; returns its text."""
        text = f"{type(error).__name__}: {error}"
        place = _user_frame(error)
        said = self.context.get_error_message()
        if said and said != self.result.traceback:
            text = f"{said} ({text})"
        self.result.traceback = "".join(traceback.format_exception(error)).rstrip()
        text = f"{text} [{place}]" if place else text
        self.context.set_error_message(f"{text}\n{self.result.traceback}")
        self.emit(EventKind.FAILED, message=text)
        return text

    def _count_fusion(self, old: Sequence[str], new: Sequence[str]) -> None:
        self.result.matches += 1
        name = self.context.get_pass_name()
        self.emit(EventKind.REPLACED, pattern=name, nodes=list(old), new_nodes=list(new))

    def _run_and_commit(self, commit: ir.Committer | None) -> None:
        graph = self.graph
        with (
            ir.use_dialect(graph.dialect),
            graph.transaction(self.descriptor.pass_name) as edits,
        ):
            instance = self.descriptor.pass_class()
            instance.instance_id = self.instance_id
            self.emit(EventKind.CREATED, pass_kind=self.descriptor.kind)
            self._run(instance)
            if edits:
                ir.put_in_order(graph)
                graph.settle_layouts()
                self._check_results()
            if edits and commit is not None:
                commit(edits)
        self.result.edits = len(edits)
        if edits:
            self.result.status = PassStatus.CHANGED

    def _run(self, instance: FusionBasePass) -> None:
        if self.controls.verify:
            self.verifier = Verifier(
                self.descriptor.pass_name, self.graph.dialect, self._rewrites_variant
            )
        if isinstance(instance, (PatternFusionPass, DecomposePass)):
            Rewriting(self, instance).run()
            return
        if not self.may_rewrite(()):
            raise PassSkipException("beyond the limit of rewrites")
        before = None if self.verifier is None else self.verifier.snapshot(self.graph)
        self._check_status(instance.run(self.graph, self.context))
        self.result.matches = max(self.result.matches, int(self.graph.is_edited))
        if self.verifier is not None and before is not None and self.graph.is_edited:
            ir.put_in_order(self.graph)
            self.graph.settle_layouts()
            self.verifier.check_graph(self.graph, before)

    def _rewrites_variant(self, variant: ir.Graph) -> bool:
        """Whether this pass also rewrites another graph, which it then has."""
        shared = ir.shared_outputs(variant)
        session = Session(variant, self.descriptor, self._options, shared, Controls(quiet=True))
        return session.execute(None) is None and session.result.matches > 0

    def _check_status(self, status: object) -> None:
        """None, True and 0 are success; bool is looked at before int, of which it is one."""
        name = self.descriptor.pass_name
        if status is None or status is True:
            return
        if status is False:
            raise PassError(f"run of {name!r} returned False")
        if not isinstance(status, int):
            raise TypeError(
                f"run of {name!r} must return None, a bool or an int status, "
                f"got {type(status).__name__} {status!r}"
            )
        if status != 0:
            raise PassError(f"run of {name!r} returned status {status}", status=int(status))

    def _check_results(self) -> None:
        """What was a result of its own must not become an alias of an input: callers write both."""
        new = ir.shared_outputs(self.graph) - self._shared
        if new:
            index, name = min(new)
            raise PassError(
                f"result {index} of the graph would share memory with {name!r}, which it did not "
                "before: copy it (aten::clone)"
            )

    def _fail(self, error: Exception) -> None:
        status = getattr(error, "status", 1)
        self.result.code = status if isinstance(status, int) and status != 0 else 1
        self._end(PassStatus.FAILED, self.record_error(error))

    def _end(self, status: PassStatus, message: str) -> None:
        self.result.status, self.result.message = status, message
        self.result.matches = 0

    def _tell_result(self) -> None:
        if self._is_heard:
            self._emit_executed()
        if not self.controls.quiet:
            _LOG.info("%s", self.result)

    def _emit_executed(self) -> None:
        self.emit(
            EventKind.EXECUTED,
            status=self.result.status.value,
            seconds=self.result.seconds,
            matches=self.result.matches,
            nodes=len(self.graph),
            inputs=[_shape_text(value) for value in self.graph.inputs],
            outputs=[_shape_text(value) for value in self.graph.outputs],
        )


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
