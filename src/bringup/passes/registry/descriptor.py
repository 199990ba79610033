"""What is known about a registered pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from bringup.passes.definition.base import FusionBasePass
from bringup.passes.definition.stages import PassStage
from bringup.passes.engine import PassRegistration


class ErrorPolicy(str, Enum):
    """What happens when a pass fails. Its edits are undone in every case.

    `fail`: the stage fails, the compile raises. `skip`: only the match that failed is undone and
    left alone (of a graph pass: everything), the compile goes on. `rollback`: the whole pass is
    undone, the compile goes on. `PassFatalError` always fails.
    """

    FAIL = "fail"
    SKIP = "skip"
    ROLLBACK = "rollback"


@dataclass(frozen=True)
class PassDescriptor:
    """One registered pass. `pass_name` and `version` together are unique.

    Attributes:
        pass_name: several versions of a pass may have the same.
        kind: `fusion_base`, `pattern_fusion`, `decompose` or `legacy_custom`.
        stage: when it runs.
        priority: within a stage the higher one runs first; equal ones in the order of their names.
        module_name, class_qualname: where its class is defined.
        op_types: what a decompose pass replaces.
        version: numbers with dots; the newest one of a name runs unless an option names another.
        requires: passes that must run, and be done, before this one.
        after: passes that run before this one where they run at all.
        max_rewrites: after so many rewrites a run stops; None for no limit.
        repeat_until_stable: whether the graph is swept again until nothing matches any more.
        on_error: what a failure does.
        source_digest: of the file that defines it, or ""; part of what a compile depends on.
        pass_class: its class; of a library's pass one whose hooks call those of the library.
        registration: what the engine's registry holds of it; None before it is registered.
    """

    pass_name: str
    kind: str
    stage: PassStage
    priority: int
    module_name: str
    class_qualname: str
    op_types: tuple[str, ...] = ()
    version: str = "1"
    requires: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    max_rewrites: int | None = None
    repeat_until_stable: bool = False
    on_error: ErrorPolicy = ErrorPolicy.FAIL
    source_digest: str = ""
    pass_class: type[FusionBasePass] = field(default=FusionBasePass, compare=False, repr=False)
    registration: PassRegistration | None = field(default=None, compare=False, repr=False)

    @property
    def descriptor_key(self) -> str:
        """Identity without the version: module, class and name."""
        return f"{self.module_name}:{self.class_qualname}:{self.pass_name}"

    @property
    def pass_kind(self) -> str:
        """Return the same as `kind`, as GE calls it."""
        return self.kind

    def __deepcopy__(self, memo: object) -> PassDescriptor:
        """Itself: copies of a configuration, as torch makes them, name the same registered pass."""
        return self

    def as_dict(self) -> dict[str, object]:
        """Return the fields as plain values, `descriptor_key` among them."""
        left_out = {"source_digest", "pass_class", "registration"}
        known = {name: value for name, value in vars(self).items() if name not in left_out}
        known.update(stage=self.stage.value, on_error=self.on_error.value)
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in known.items()}
        return {"descriptor_key": self.descriptor_key, **plain}
