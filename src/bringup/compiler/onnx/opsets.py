"""The operators of a model: the versions of its domains, their schemas, its own functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from onnx import helper

from bringup import ir
from bringup.compiler.onnx import operators
from bringup.compiler.onnx.operators import Signature


class ModelOperators:
    """A model's operators: each domain's version (by default the newest), its functions."""

    def __init__(
        self,
        opsets: Mapping[str, int] | None = None,
        *,
        functions: Mapping[str, Any] | None = None,
        ir_version: int = 0,
    ) -> None:
        self.opsets = dict(opsets or {})
        self.ir_version = ir_version or int(onnx.IR_VERSION)
        self._functions = functions if functions is not None else {}
        default = operators.newest("")
        assert default is not None, "onnx knows its own domain"
        self._versions = {"": default, **self.opsets}
        self._facts: dict[str, Signature | None] = {}
        self._foreign: dict[str, ir.Operator] = {}  # by type: of domains without schemas
        self._random_functions: dict[str, bool] = {}
        self.inferred: dict[tuple[object, ...], list[Any]] = {}
        """The types of the outputs of calls that onnx was asked about."""

    @property
    def imports(self) -> list[Any]:
        versions = {**self._versions}
        for function in self._functions.values():
            versions.setdefault(function.domain, 1)
        return [helper.make_opsetid(domain, version) for domain, version in versions.items()]

    def version_of(self, domain: str) -> int:
        """Return the version of a domain: the imported one, else onnx's newest."""
        return self._versions.get(domain) or operators.newest(domain) or 1

    def _signature(self, domain: str, name: str) -> Signature | None:
        version = self._versions.get(domain) or operators.newest(domain)
        return None if version is None else operators.signature(domain, name, version)

    def signature_of(self, operator: ir.Operator) -> Signature | None:
        """Return the schema of a node's operator; None for one without."""
        return self.signature_named(operator.type)

    def signature_named(self, op_type: str) -> Signature | None:
        if op_type not in self._facts:
            self._facts[op_type] = self._signature(*operators.domain_of(op_type))
        return self._facts[op_type]

    def function_of(self, op_type: str) -> Any:
        return self._functions.get(op_type)

    def function_protos(self) -> list[Any]:
        return list(self._functions.values())
