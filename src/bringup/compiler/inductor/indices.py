"""Index expressions of sympy as text in what C and OpenCL C share. All integers are int64_t."""

from __future__ import annotations

from functools import partialmethod

import sympy  # type: ignore[import-untyped]

from bringup.compiler.inductor.torch_private import CppPrinter


class IndexPrinter(CppPrinter):  # type: ignore[misc]
    """Prints what torch's printer writes in C++ without namespaces, templates and casts of C++."""

    def _binary(self, name: str, expr: sympy.Expr) -> str:
        left, *others = (self.doprint(argument) for argument in expr.args)
        for right in others:
            left = f"{name}_int64_t({left}, {right})"
        return str(left)

    def _print_FloorDiv(self, expr: sympy.Expr) -> str:
        base, divisor = expr.args
        if base.is_nonnegative and divisor.is_positive:
            return f"(({self.doprint(base)}) / ({self.doprint(divisor)}))"
        return self._binary("floordiv", expr)

    def _print_CleanDiv(self, expr: sympy.Expr) -> str:
        base, divisor = expr.args
        return f"(({self.doprint(base)}) / ({self.doprint(divisor)}))"

    def _print_ModularIndexing(self, expr: sympy.Expr) -> str:
        base, divisor, modulus = expr.args
        text = f"({self.doprint(base)})"
        if divisor != 1:
            text = f"({text} / ({self.doprint(divisor)}))"
        return f"({text} % ({self.doprint(modulus)}))"

    _print_PythonMod = partialmethod(_binary, "remainder")
    _print_Min = partialmethod(_binary, "min")
    _print_Max = partialmethod(_binary, "max")

    def _print_Abs(self, expr: sympy.Expr) -> str:
        text = self.doprint(expr.args[0])
        return f"max_int64_t({text}, -({text}))"

    def _print_Where(self, expr: sympy.Expr) -> str:
        condition, yes, no = (self.doprint(argument) for argument in expr.args)
        return f"(({condition}) ? ({yes}) : ({no}))"

    def _print_Not(self, expr: sympy.Expr) -> str:
        return f"(!({self.doprint(expr.args[0])}))"

    def _print_ToFloat(self, expr: sympy.Expr) -> str:
        return f"((double)({self.doprint(expr.args[0])}))"

    def _print_IntTrueDiv(self, expr: sympy.Expr) -> str:
        base, divisor = (self.doprint(argument) for argument in expr.args)
        return f"((double)({base}) / (double)({divisor}))"

    def _cast(self, function: str, expr: sympy.Expr) -> str:
        return f"((int64_t){function}({self.doprint(expr.args[0])}))"

    _print_TruncToInt = partialmethod(_cast, "trunc")
    _print_FloorToInt = partialmethod(_cast, "floor")
    _print_CeilToInt = partialmethod(_cast, "ceil")
    _print_RoundToInt = partialmethod(_cast, "rint")

    def _print_Pow(self, expr: sympy.Expr) -> str:
        base, exponent = expr.args
        if not (exponent.is_integer and exponent > 0):
            raise NotImplementedError(f"an index to the power of {exponent}")
        return "(" + "*".join([f"({self.doprint(base)})"] * int(exponent)) + ")"

    _print_PowByNatural = _print_Pow

    def _print_Integer(self, expr: sympy.Expr) -> str:
        return f"INT64_C({int(expr)})" if abs(int(expr)) >= 1 << 31 else str(int(expr))


print_index = IndexPrinter().doprint
