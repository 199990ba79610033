"""What an operator computes for one element, as a text that every target's language can say: `"self
+ value * tensor1 * tensor2"`.

It is Python: numbers, `+ - * / **`, comparisons, `and or not`, `a if condition else b`, functions,
names of arguments, and lines that name a part (`t = tanh(self); grad * (1 - t * t)`). What is asked
of an argument that is None or a text is answered when the code is written. Several results are
separated by commas; `uniform()` is a random number of the element in [0, 1).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from keyword import iskeyword
from math import inf

from bringup.errors import SchemaError

_FLOATING = frozenset(("float", "double"))
# As C calls them, of floating point numbers.
_UNARY = (
    "exp exp2 expm1 log log1p log2 log10 sqrt sin cos tan asin acos atan sinh cosh tanh asinh "
    "acosh atanh erf erfc floor ceil trunc rint"
)
_BINARY = "pow atan2 fmod copysign"
FUNCTIONS = {**dict.fromkeys(_UNARY.split(), 1), **dict.fromkeys(_BINARY.split(), 2)}
_BRANCH_FREE = ("erf", "tanh")  # of float, in bringup/functions.h: a library's are calls
_OWN = {"abs": 1, "min": 2, "max": 2, "isnan": 1}
_ROUNDED = {"float16": "half", "bfloat16": "bfloat16"}  # to what a float is rounded
_DRAWS = {"uniform": 0}
_MOST_DRAWS = 2  # that are independent: an element has bits for two numbers of 64
_OPERATORS: Mapping[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"
}  # fmt: skip
_COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="
}  # fmt: skip
_CONSTANTS = {"inf": "INFINITY", "nan": "NAN"}
_NICKNAMES = "xabc"  # of the first tensors, where no argument is called so


class Exact(str):
    """The C of a number that is a double, where the device has that type."""


@dataclass(frozen=True)
class ElementExpression:
    """An expression over the arguments of an operator.

    Attributes:
        text: as its author wrote it.
        names: what it may name, in the order of the operator's arguments; `from` is `from_` in the
            text, as any word of Python's.
        tensors: those that are tensors: they can also be called x, a, b and c, in order.
        where: what errors start with.

    Raises:
        SchemaError: the text cannot be read, or names what is not there.
    """

    text: str
    names: tuple[str, ...]
    tensors: tuple[str, ...] = ()
    where: str = "expression="
    _parts: tuple[tuple[str, ast.expr], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_parts", self._read())
        for computed in ("float", "int64_t"):  # an argument of every kind has its words
            if computed == "float" or not self.floating_only:
                self.code(computed, dict.fromkeys(self.names, "0"))

    def error(self, reason: str) -> SchemaError:
        """Return what is wrong with the text, for this `reason`."""
        return SchemaError(f"{self.where}: {self.text!r}: {reason}")

    def _read(self) -> tuple[tuple[str, ast.expr], ...]:
        try:
            body = ast.parse(self.text.strip()).body
        except (SyntaxError, ValueError, RecursionError) as error:
            raise self.error(f"it cannot be read: {getattr(error, 'msg', error)}") from error
        if not body or not isinstance(body[-1], ast.Expr):
            raise self.error("it ends in no result: the last line is the result's expression")
        parts: list[tuple[str, ast.expr]] = []
        for line in body[:-1]:
            target = line.targets[0] if isinstance(line, ast.Assign) else None
            if not isinstance(line, ast.Assign) or not isinstance(target, ast.Name):
                raise self.error("a line before the result is name = expression")
            if target.id in self._known() or any(target.id == name for name, _ in parts):
                raise self.error(f"{target.id} has a meaning already")
            parts.append((target.id, line.value))
        result = body[-1].value
        several = result.elts if isinstance(result, ast.Tuple) else [result]
        if not several:
            raise self.error("it has no result")
        parts += [("", one) for one in several]
        self._check_names(parts)
        return tuple(parts)

    def _check_names(self, parts: Sequence[tuple[str, ast.expr]]) -> None:
        known = {*self._known(), *_CONSTANTS, *FUNCTIONS, *_OWN, *_ROUNDED, *_DRAWS}
        for name, part in parts:
            for node in ast.walk(part):
                if isinstance(node, ast.Name) and node.id not in known:
                    raise self.error(f"{node.id} is no argument ({', '.join(self._known())})")
            known.add(name)

    def _known(self) -> dict[str, str]:
        nicknames = zip(_NICKNAMES, self.tensors, strict=False)
        return {**dict(nicknames), **{name + "_" * iskeyword(name): name for name in self.names}}

    @property
    def results(self) -> int:
        """Return how many results it has."""
        return sum(not name for name, _ in self._parts)

    @property
    def draws(self) -> bool:
        """Return whether it has random numbers."""
        return any(_is_draw(node) for _, part in self._parts for node in ast.walk(part))

    @property
    def floating_only(self) -> bool:
        """Return whether it divides, has a fraction or a function that whole numbers lack."""
        return any(_needs_floating(node) for _, part in self._parts for node in ast.walk(part))

    @property
    def calls(self) -> frozenset[str]:
        """Return the functions that it calls, `pow` also for `**`."""
        nodes = [node for _, part in self._parts for node in ast.walk(part)]
        named = {
            node.func.id
            for node in nodes
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        return frozenset(named | {"pow" for node in nodes if isinstance(node, ast.Pow)})

    def renamed(self, names: Mapping[str, str], prefix: str) -> tuple[list[str], list[str]]:
        """Return its lines and its results as texts, to be part of another expression.

        Args:
            names: for each argument what it is called there.
            prefix: what stands before the names of its own lines.
        """
        known = {name: names[meant] for name, meant in self._known().items()}
        lines, results = [], []
        for name, part in self._parts:
            text = ast.unparse(_Renaming(known).visit(deepcopy(part)))
            if name:
                known[name] = prefix + name
                lines.append(f"{known[name]} = {text}")
            else:
                results.append(text)
        return lines, results

    def code(self, computed: str, given: Mapping[str, str | None], prefix: str = "") -> str:
        """Return the body of a C function that computes it and returns it; several results are
        written where its parameters `out0`, `out1`, ... point.

        Args:
            computed: the C type computed in.
            given: by name, as `Writer.parameters` gives it, the C of an argument of that type or of
                a double, None, or a text in double quotes. What it draws is of a parameter
                `random_`, a `bringup_random` (bringup/random.h).
            prefix: what stands before the names of C's functions of numbers, such as `std::`. erf
                and tanh of float are those of bringup/functions.h.
        """
        known = {name: given[meant] for name, meant in self._known().items()}
        writer = _Writer(self, computed, known, prefix)
        lines, number = "", 0
        for name, part in self._parts:
            value = writer.value(part)
            if name:
                lines += f"  const {computed} {name}_ = {value};\n"
                known[name] = f"{name}_"
            elif self.results == 1:
                lines += f"  return {value};\n"
            else:
                lines += f"  *out{number} = {value};\n"
                number += 1
        return lines


def _is_draw(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in _DRAWS


def _needs_floating(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id not in _OWN
    return isinstance(node, (ast.Div, ast.Pow)) or (
        isinstance(node, ast.Name) and node.id in _CONSTANTS
    )


class _Renaming(ast.NodeTransformer):
    """Gives names of values others, and leaves functions theirs."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._names.get(node.id, node.id))

    def visit_Call(self, node: ast.Call) -> ast.Call:
        node.args = [self.visit(one) for one in node.args]
        return node


class _Writer:
    """Writes an expression in C. What is known now is a bool of Python, not a text."""

    def __init__(
        self,
        expression: ElementExpression,
        computed: str,
        known: Mapping[str, str | None],
        prefix: str,
    ) -> None:
        self._expression = expression
        self._error = expression.error
        self._computed = computed
        self._known = known
        self._prefix = prefix
        self._draws = 0

    def value(self, node: ast.expr) -> str:
        """Return a number of the type computed in; exact ones are joined first, as torch's are."""
        if self._is_exact(node):
            known = {name: value and str(value) for name, value in self._known.items()}
            exact = _Writer(self._expression, "double", known, self._prefix)
            return f"(({self._computed}){exact.value(node)})"
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.BinOp):
            return self._operation(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return f"(-{self.value(node.operand)})"
        if isinstance(node, ast.IfExp):
            return self._choice(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        return self._as_number(self.condition(node))

    def _is_exact(self, node: ast.expr) -> bool:
        if self._computed not in _FLOATING or not isinstance(node, (ast.BinOp, ast.IfExp)):
            return False
        inside = list(ast.walk(node))
        names = [self._known.get(one.id) for one in inside if isinstance(one, ast.Name)]
        calls = any(isinstance(one, ast.Call) for one in inside)
        return bool(names) and not calls and all(isinstance(name, Exact) for name in names)

    def condition(self, node: ast.expr) -> str | bool:
        """Return something true or false."""
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.BoolOp):
            return self._joined(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            condition = self.condition(node.operand)
            return not condition if isinstance(condition, bool) else f"(!{condition})"
        if isinstance(node, ast.Call) and self._called(node) == "isnan":
            value = self.value(node.args[0])
            return f"({value} != {value})"
        if isinstance(node, (ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Call)):
            return f"({self.value(node)} != 0)"
        raise self._error(f"{ast.unparse(node)} is nothing that can be computed for an element")

    def _constant(self, node: ast.Constant) -> str:
        number = node.value
        if isinstance(number, bool) or not isinstance(number, (int, float)) or number == inf:
            raise self._error(f"{number!r} is no number")
        if self._computed not in _FLOATING:
            return f"(({self._computed}){number})"
        return f"{float(number)!r}{'f' if self._computed == 'float' else ''}"

    def _name(self, node: ast.Name) -> str:
        if node.id in self._known:
            given = self._known[node.id]
            if given is None or given.startswith('"'):
                what = "None" if given is None else given
                raise self._error(f"{node.id} is {what} here: ask for it before it is used")
            return f"(({self._computed}){given})" if isinstance(given, Exact) else given
        if node.id in _CONSTANTS:
            return f"(({self._computed}){_CONSTANTS[node.id]})"
        raise self._error(f"{node.id} is no argument ({', '.join(self._known)})")

    def _operation(self, node: ast.BinOp) -> str:
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(node.op, ast.Pow):
            return f"{self._prefix}pow({left}, {right})"
        if type(node.op) not in _OPERATORS:
            raise self._error(f"{ast.unparse(node)}: expected + - * / or **")
        made = f"({left} {_OPERATORS[type(node.op)]} {right})"
        # C computes with whole numbers that are narrower than int as with int.
        return made if self._computed in _FLOATING else f"(({self._computed}){made})"

    def _choice(self, node: ast.IfExp) -> str:
        condition = self.condition(node.test)
        if isinstance(condition, bool):
            return self.value(node.body if condition else node.orelse)
        return f"({condition} ? {self.value(node.body)} : {self.value(node.orelse)})"

    def _called(self, node: ast.Call) -> str:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        known = {**FUNCTIONS, **_OWN, **_DRAWS, **dict.fromkeys(_ROUNDED, 1)}
        count = known.get(name)
        if count is None or node.keywords:
            raise self._error(
                f"{ast.unparse(node.func)}() is no function of numbers ({', '.join(known)})"
            )
        if len(node.args) != count:
            raise self._error(f"{name}() takes {count} numbers, got {len(node.args)}")
        return name

    def _call(self, node: ast.Call) -> str:
        name = self._called(node)
        if name == "isnan":
            return self._as_number(self.condition(node))
        if name in _DRAWS:
            return self._drawn()
        given = [self.value(argument) for argument in node.args]
        if name == "abs":
            value = given[0]
            if self._computed in _FLOATING:
                return f"{self._prefix}fabs({value})"
            return f"({value} < 0 ? ({self._computed})(-{value}) : {value})"
        if name in _ROUNDED:
            return f"bringup_round_{_ROUNDED[name]}({given[0]})"
        if name in _OWN:  # NaN wins
            return f"bringup_{name}({', '.join(given)})"
        if name in _BRANCH_FREE and self._computed == "float":
            return f"bringup_{name}f({given[0]})"
        return f"{self._prefix}{name}({', '.join(given)})"

    def _drawn(self) -> str:
        if self._draws == _MOST_DRAWS:
            raise self._error(f"an element has {_MOST_DRAWS} random numbers: name one, and use it")
        self._draws += 1
        return f"bringup_uniform_{self._computed}(random_, {self._draws - 1})"

    def _as_number(self, condition: str | bool) -> str:
        if isinstance(condition, bool):
            return self._constant(ast.Constant(int(condition)))
        return f"(({self._computed}){condition})"

    def _comparison(self, node: ast.Compare) -> str | bool:
        if len(node.ops) > 1:
            raise self._error(f"{ast.unparse(node)}: compare two things, and join with and")
        (operator,), (right,) = node.ops, node.comparators
        if isinstance(right, ast.Constant) and (right.value is None or type(right.value) is str):
            return self._known_comparison(node, operator, right)
        if type(operator) not in _COMPARISONS:
            raise self._error(f"{ast.unparse(node)}: expected < <= > >= == or !=")
        return f"({self.value(node.left)} {_COMPARISONS[type(operator)]} {self.value(right)})"

    def _known_comparison(
        self, node: ast.Compare, operator: ast.cmpop, right: ast.Constant
    ) -> bool:
        expected = (ast.Is, ast.IsNot) if right.value is None else (ast.Eq, ast.NotEq)
        name = node.left.id if isinstance(node.left, ast.Name) else ""
        if name not in self._known or not isinstance(operator, expected):
            raise self._error(f"{ast.unparse(node)}: an argument is None, or == a text")
        is_so = self._known[name] == (None if right.value is None else f'"{right.value!s}"')
        return is_so == isinstance(operator, (ast.Is, ast.Eq))

    def _joined(self, node: ast.BoolOp) -> str | bool:
        is_and = isinstance(node.op, ast.And)
        asked: list[str] = []
        for value in node.values:  # in order: what is known to be so may guard what follows
            condition = self.condition(value)
            if condition is (not is_and):
                return not is_and
            if isinstance(condition, str):
                asked.append(condition)
        if len(asked) < 2:
            return asked[0] if asked else is_and
        return f"({(' && ' if is_and else ' || ').join(asked)})"
