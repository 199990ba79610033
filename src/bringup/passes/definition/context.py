"""What a pass knows about its run, and what it reports. Valid only while the pass runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from bringup.errors import ExpiredHandleError
from bringup.passes.definition.stages import PassStage


class PassContext:
    """The context of one pass on one graph.

    Args:
        pass_name: the name it was registered under.
        stage: the stage it runs in.
        options: the options of the compile; see `get_option_value`.
        instance_id: the number of this session, unique in the process.
        on_fusion: called with the names of the old and new nodes of every reported fusion.
        on_refusal: called with the name of a node and the reason why it was left alone.

    Using it after the pass has returned raises `ExpiredHandleError`.
    """

    def __init__(
        self,
        pass_name: str,
        stage: PassStage,
        options: Mapping[str, object] = MappingProxyType({}),
        instance_id: int = 0,
        on_fusion: Callable[[Sequence[str], Sequence[str]], None] | None = None,
        on_refusal: Callable[[str, str], None] | None = None,
    ) -> None:
        self._pass_name = pass_name
        self._stage = stage
        self._options = options
        self._instance_id = instance_id
        self._on_fusion = on_fusion
        self._on_refusal = on_refusal
        self._error_message = ""
        self._expired = False

    @property
    def pass_name(self) -> str:
        """Return the name of the pass."""
        return self.get_pass_name()

    @property
    def stage(self) -> PassStage:
        """Return the stage the pass runs in."""
        self._live()
        return self._stage

    @property
    def options(self) -> Mapping[str, object]:
        """Return all options of the compile."""
        self._live()
        return MappingProxyType(dict(self._options))

    @property
    def instance_id(self) -> int:
        """Return the number of this run of this pass on this graph, unique in the process."""
        self._live()
        return self._instance_id

    @property
    def error_message(self) -> str:
        """Return why the pass failed, "" if it is not said."""
        return self.get_error_message()

    def get_pass_name(self) -> str:
        """Return the name of the pass."""
        self._live()
        return self._pass_name

    def set_pass_name(self, name: str) -> None:
        """Let fusions reported from now on, and errors, name the pass like this."""
        self._live()
        self._pass_name = _text("pass name", name)

    def get_error_message(self) -> str:
        """Return why the pass failed, or "": after an exception, its text and traceback."""
        self._live()
        return self._error_message

    def set_error_message(self, message: str) -> None:
        """Let `message` be why the pass failed; it becomes part of the `PassError`."""
        self._live()
        self._error_message = _text("error message", message)

    def count_fusion(self, old: Sequence[str], new: Sequence[str]) -> None:
        """Note that nodes named in `old` were fused to those named in `new`, for `report_fuse`."""
        self._live()
        if self._on_fusion is not None:
            self._on_fusion(old, new)

    def refuse(self, node: str, reason: str) -> None:
        """Note the reason to leave the candidate at this node alone: the first is reported."""
        self._live()
        if self._on_refusal is not None:
            self._on_refusal(node, reason)

    def get_option_value(self, key: str) -> object:
        """Return the option `key`; `KeyError` lists the options there are if it is none."""
        self._live()
        if key not in self._options:
            raise KeyError(f"there is no option {key!r}; this compile has {sorted(self._options)}")
        return self._options[key]

    def expire(self) -> None:
        """End the life of this handle."""
        self._expired = True
        self._on_fusion = self._on_refusal = (
            None  # what it belongs to need not wait for the garbage collector
        )

    def _live(self) -> None:
        if self._expired:
            raise ExpiredHandleError(
                f"the context of pass {self._pass_name!r} has expired: it lives only while the "
                "pass runs"
            )

    def __repr__(self) -> str:
        state = ", expired" if self._expired else ""
        return f"PassContext({self._pass_name!r}, {self._stage.name}{state})"


def _text(what: str, text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"the {what} must be a string, got {text!r}")
    return text
