"""Expressions in C over `args` and `ctx`, with the results of native/runtime/expression.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bringup._language.c_call import CParameter, ValueKind
from bringup._language.expression import Expression, Instruction, Opcode, double_of
from bringup.jit.source.generated import c_text

_LEAVES: Mapping[Opcode, str] = {
    Opcode.INT: "bringup_glue_int({arg})", Opcode.FLOAT: "bringup_glue_float({arg})",
    Opcode.REAL: "bringup_glue_real({arg})", Opcode.STRING: "(const char*){arg}",
    Opcode.DATA: "bringup_glue_data({arg})",
    Opcode.LIST_DATA: "bringup_glue_list_data({arg})",
    Opcode.SIZE: "bringup_glue_size({arg}, {value})",
    Opcode.STRIDE: "bringup_glue_stride({arg}, {value})", Opcode.NUMEL: "bringup_glue_numel({arg})",
    Opcode.NDIM: "bringup_glue_ndim({arg})", Opcode.LENGTH: "bringup_glue_length({arg})",
    Opcode.HAS: "(int64_t)({arg} != NULL)", Opcode.DTYPE: "bringup_glue_dtype({arg})",
    Opcode.DTYPE_CODE: "bringup_glue_dtype_code({arg})",
    Opcode.DTYPE_BITS: "bringup_glue_dtype_bits({arg})",
    Opcode.SIZE_ALONG: "bringup_glue_size_along({arg}, args[{value}])",
    Opcode.STRIDE_ALONG: "bringup_glue_stride_along({arg}, args[{value}])",
    Opcode.ELEMENT: "bringup_glue_element({arg}, {value})",
    Opcode.ITEM_DATA: "bringup_glue_data(bringup_glue_item({arg}, {value}))",
    Opcode.ITEM_NUMEL: "bringup_glue_numel(bringup_glue_item({arg}, {value}))",
    Opcode.STREAM: "ctx->stream", Opcode.DEVICE: "(int64_t)ctx->device.device_id",
}  # fmt: skip
_OPERATORS: Mapping[Opcode, str] = {
    Opcode.ADD: "bringup_glue_add({0}, {1})", Opcode.SUBTRACT: "bringup_glue_subtract({0}, {1})",
    Opcode.MULTIPLY: "bringup_glue_multiply({0}, {1})",
    Opcode.FLOOR_DIVIDE: "bringup_glue_floor_divide({0}, {1})",
    Opcode.MODULO: "bringup_glue_modulo({0}, {1})", Opcode.MINIMUM: "({0} < {1} ? {0} : {1})",
    Opcode.LESS: "(int64_t)({0} < {1})", Opcode.EQUAL: "(int64_t)({0} == {1})",
    Opcode.AND: "(int64_t)(({0} != 0) & ({1} != 0))",
    Opcode.OR: "(int64_t)(({0} != 0) | ({1} != 0))",
}  # fmt: skip
# What a step refuses: when, and the reason.
_OVERFLOWS = {
    Opcode.ADD: "__builtin_add_overflow({0}, {1}, &number)",
    Opcode.SUBTRACT: "__builtin_sub_overflow({0}, {1}, &number)",
    Opcode.MULTIPLY: "__builtin_mul_overflow({0}, {1}, &number)",
    Opcode.FLOOR_DIVIDE: "{0} == INT64_MIN && {1} == -1",
}
_DIVISIONS = (Opcode.FLOOR_DIVIDE, Opcode.MODULO)
_DIMENSIONS = (Opcode.SIZE, Opcode.STRIDE)
_DEFAULTED = {Opcode.SIZE_OR: "size", Opcode.STRIDE_OR: "stride"}


def value_code(value: Expression) -> str:
    """Return the C of the value for a call that `refusals` admits; of a workspace, its size."""
    stack: list[str] = []
    for step in value.program:
        if step.opcode in _OPERATORS:
            right = stack.pop()
            stack[-1] = _OPERATORS[step.opcode].format(stack[-1], right)
        elif step.opcode is Opcode.NOT:
            stack[-1] = f"(int64_t)({stack[-1]} == 0)"
        elif step.opcode in _DEFAULTED:
            stack[-1] = _dimension_or(step, stack[-1])
        elif step.opcode is not Opcode.WORKSPACE:
            stack.append(_leaf(value, step))
    return stack[0]


def refusals(parameter: CParameter) -> str:
    """Return statements that refuse values that are missing or do not fit, step by step."""
    value, lines = parameter.value, []
    stack: list[str] = []
    for number, step in enumerate(value.program):
        if step.opcode is Opcode.WORKSPACE:
            continue
        lines += _refused(value, step, stack)
        if step.opcode in _OPERATORS:
            right = stack.pop()
            code = _OPERATORS[step.opcode].format(stack.pop(), right)
        elif step.opcode is Opcode.NOT:
            code = f"(int64_t)({stack.pop()} == 0)"
        elif step.opcode in _DEFAULTED:
            code = _dimension_or(step, stack.pop())
        else:
            code = _leaf(value, step)
        stack.append(code)
        if step.opcode in _OPERATORS and number + 1 < len(value.program):
            lines.append(f"const int64_t step_{number} = {code};")
            stack[-1] = f"step_{number}"
    lines += _out_of_range(parameter, stack[0])
    if not lines:
        return ""
    if any("&number" in line for line in lines):
        lines.insert(0, "int64_t number;")
    return "  {\n" + "".join(f"    {line}\n" for line in lines) + "  }\n"


def _refused(value: Expression, step: Instruction, stack: list[str]) -> list[str]:
    opcode, lines = step.opcode, []
    if opcode in _DIMENSIONS:
        arg = f"args[{step.argument}]"
        reason = f"bringup_glue_dimensions({c_text(value.needs(step))}, {arg})"
        lines.append(f"if (!bringup_glue_has_dimension({arg}, {step.value})) return {reason};")
    if opcode in (Opcode.SIZE_ALONG, Opcode.STRIDE_ALONG):
        arg, dim = f"args[{step.argument}]", f"args[{step.value}]"
        reason = f"bringup_glue_dimensions({c_text(value.needs(step))}, {arg})"
        lines.append(f"if (!bringup_glue_has_along({arg}, {dim})) return {reason};")
    if opcode in _DIVISIONS:
        reason = c_text(f"'{value.text}' divides by zero")
        lines.append(f"if ({stack[-1]} == 0) return {reason};")
    if opcode in _OVERFLOWS:
        reason = c_text(f"'{value.text}' does not fit into 64 bits")
        lines.append(f"if ({_OVERFLOWS[opcode].format(*stack[-2:])}) return {reason};")
    return lines


def _out_of_range(parameter: CParameter, code: str) -> list[str]:
    shown = c_text(parameter.text)
    if parameter.declared_type:
        known = replace(parameter, declared_type="")
        return [*_unlike_declared(parameter, code), *_out_of_range(known, code)]
    if parameter.program[0].opcode is Opcode.LIST_DATA:  # numbers that the function takes unsigned
        refusal = f"bringup_glue_list_outside({shown}, args[{parameter.program[0].argument}])"
        return [f"if ({refusal} != NULL) return {refusal};"] if parameter.bounds else []
    if parameter.kind is ValueKind.FLOAT32:
        refusal = f"bringup_glue_not_single({shown}, {code})"
        return [f"if (!bringup_glue_fits_single({code})) return {refusal};"]
    if parameter.bounds is None:
        return []
    lowest, highest = map(_number, parameter.bounds)
    refusal = f"bringup_glue_outside({shown}, {code}, {lowest}, {highest})"
    return [f"if ({code} < {lowest} || {code} > {highest}) return {refusal};"]


def _unlike_declared(parameter: CParameter, code: str) -> list[str]:
    """Return C that compares a number with a type only the compiler knows, and refuses another."""
    given, is_whole = parameter.declared_type, parameter.kind is ValueKind.INT
    words = c_text(f"args=: {parameter.text} is passed, and the function takes {given} there")
    if parameter.alike:
        return [f"BRINGUP_GLUE_ASSERT(BRINGUP_GLUE_IS_LIKE({given}, {parameter.alike}), {words});"]
    if not is_whole:
        return [f"BRINGUP_GLUE_ASSERT(!BRINGUP_GLUE_IS_WHOLE({given}), {words});"]
    refusal = f"bringup_glue_changed({c_text(parameter.text)}, {code})"
    return [f"if (BRINGUP_GLUE_CHANGES({given}, {code})) return {refusal};"]


def _leaf(value: Expression, step: Instruction) -> str:
    if step.opcode is Opcode.TEXT:
        return '"' + "".join(map(_C_CHARACTERS.__getitem__, value.texts[step.value].encode())) + '"'
    if step.opcode is Opcode.CONSTANT:
        return f"({double_of(step.value)!r})" if value.is_real else _number(step.value)
    return _LEAVES[step.opcode].format(arg=f"args[{step.argument}]", value=step.value)


def _dimension_or(step: Instruction, otherwise: str) -> str:
    arg = f"args[{step.argument}]"
    tensor = f"bringup_glue_item({arg}, {step.item})" if step.item >= 0 else arg
    function = f"bringup_glue_{_DEFAULTED[step.opcode]}_or"
    return f"{function}({tensor}, {step.dimension}, {otherwise})"


def _number(number: int) -> str:
    # C has no literal for the lowest number of 64 bits.
    return f"(INT64_C({number + 1}) - 1)" if number < 0 else f"INT64_C({number})"


# Each byte as a text of C has it.
_C_CHARACTERS = [
    chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
    for byte in range(256)
]
