"""What a pattern pass wants compared beyond the types of the operators."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PatternMatcherConfig:
    """How all patterns of one pass are compared. A pass without a config compares everything.

    Attributes:
        const_value_match: whether a constant of the pattern matches equal constants only, instead
            of any.
        ir_attr_match: whether host arguments (numbers, lists, strings) must be equal, instead of
            being left open.
    """

    const_value_match: bool = False
    ir_attr_match: bool = False

    def is_enable_const_value_match(self) -> bool:
        """Return whether constants are compared by value."""
        return self.const_value_match

    def is_enable_ir_attr_match(self) -> bool:
        """Return whether host arguments are compared."""
        return self.ir_attr_match


class PatternMatcherConfigBuilder:
    """Makes a config: `PatternMatcherConfigBuilder().enable_const_value_match().build()`."""

    def __init__(self) -> None:
        self._const_value_match = False
        self._ir_attr_match = False

    def enable_const_value_match(self) -> PatternMatcherConfigBuilder:
        """Compare constants by value, and return this builder."""
        self._const_value_match = True
        return self

    def enable_ir_attr_match(self) -> PatternMatcherConfigBuilder:
        """Compare host arguments, and return this builder."""
        self._ir_attr_match = True
        return self

    def build(self) -> PatternMatcherConfig:
        """Return the config."""
        return PatternMatcherConfig(self._const_value_match, self._ir_attr_match)
