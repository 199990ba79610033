"""Generated entries: C around a source that makes kernel.h's entry of any other form (glue.h)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bringup._language.c_call import CParameter
from bringup.jit.source.generated import ENTRY, c_text, included
from bringup.jit.source.source import Source
from bringup.jit.template.c_code import refusals, value_code

Form = Literal["params", "ascendc"]


@dataclass(frozen=True)
class Glued:
    """A source with its generated entry, and the flags that it needs to be found."""

    source: Source
    flags: tuple[str, ...]


def glue(source: Source, form: Form, items: Sequence[CParameter], blocks: str = "1") -> Glued:
    """Return `source`, whose entry has the given form, as one with an entry of kernel.h's form.

    Its entry is `run(block_num, stream, params)` for `"params"`, `aclrtlaunch_<entry>(block_dim,
    stream, items...)` for `"ascendc"`; `blocks` is the C of block_num and block_dim.
    """
    if form == "ascendc":
        return _glued(source, items, _ascendc_call(source.entry, items, blocks))
    return _glued(
        source,
        items,
        _CALL_PARAMS,
        body=_parameters(source.entry, items, blocks),
        refuse=_REFUSE_PARAMS,
    )


def glue_function(source: Source, parameters: Sequence[CParameter]) -> Glued:
    """Return `source`, any function, with an entry of kernel.h's form that calls it."""
    lines = "".join(_variable(i, parameter) for i, parameter in enumerate(parameters))
    given = ", ".join(_given(i, parameter) for i, parameter in enumerate(parameters))
    call = f"{lines}  return BRINGUP_GLUE_STATUS({source.entry}({given}));\n"
    return _glued(source, parameters, call)


def _glued(
    source: Source, given: Sequence[CParameter], call: str, body: str = "", refuse: str = ""
) -> Glued:
    text = _TEXT.format(
        source=included(source),
        refusals="".join(dict.fromkeys(map(refusals, given))),
        body=body,
        refuse=refuse or _REFUSE,
        call=call,
    )
    stem, suffix = os.path.splitext(source.file_name)
    glued = Source(text=text, name=f"{stem}.entry{suffix}", entry=ENTRY, kind=source.kind)
    return Glued(glued, (f"-iquote{source.directory}",) if source.path is not None else ())


def _parameters(entry: str, items: Sequence[CParameter], blocks: str) -> str:
    fields = "".join(f"  {item.c_type} field_{i};\n" for i, item in enumerate(items))
    values = "".join(
        f"  p->field_{i} = {value_code(item.value)};\n" for i, item in enumerate(items)
    )
    return _PARAMETERS.format(
        fields=fields, values=values, entry=entry, blocks=blocks, checks=_checks(items)
    )


def _checks(items: Sequence[CParameter]) -> str:
    kinds = [_KINDS[item.c_type] for item in items]
    lines = ""
    for i, item in enumerate(items):
        given = "".join(f", bringup::glue::{kind}" for kind in kinds[: i + 1])
        words = f"field {i + 1} of the kernel's parameter struct is not {_SHOWN[kinds[i]]}"
        lines += _TYPE_CHECK.format(
            given=given, words=c_text(f"{words}, as params= has there: {item.text}")
        )
    members = ""
    for name, i in _places(items).items():
        # What params= names has to be there; what is called as an argument is may be missing.
        check = "BRINGUP_GLUE_HAS_AT" if items[i].member else "BRINGUP_GLUE_IS_AT"
        words = f"the kernel's parameter struct has {name} in another place than params="
        words += ", or not at all" if items[i].member else ""
        members += _MEMBER.format(name=name)
        lines += _PLACE_CHECK.format(
            name=name, check=check, field=f"field_{i}", words=c_text(words)
        )
    return _CHECKS.format(members=members, lines=lines)


def _places(items: Sequence[CParameter]) -> dict[str, int]:
    """Return the fields whose names are known, by those names."""
    numbered = list(enumerate(items))
    implied = {item.argument_name: i for i, item in numbered if not item.member}
    named = {item.member: i for i, item in numbered}
    return {name: i for name, i in (implied | named).items() if name and not _KEYWORD.match(name)}


def _ascendc_call(entry: str, items: Sequence[CParameter], blocks: str) -> str:
    given = [
        f"BRINGUP_GLUE_ADDRESS({code})" if item.c_type == "void*" else code
        for item, code in ((item, value_code(item.value)) for item in items)
    ]
    given = [f"(uint32_t)({blocks})", "BRINGUP_GLUE_ADDRESS(ctx->stream)", *given]
    return f"  return BRINGUP_GLUE_STATUS(aclrtlaunch_{entry}({', '.join(given)}));\n"


def _variable(index: int, parameter: CParameter) -> str:
    code, c_type = value_code(parameter.value), parameter.c_type
    if parameter.is_workspace:
        return (
            f"  void* value_{index};\n"
            f"  if (bringup_glue_scratch(ctx, {code}, &value_{index}) != 0) return 1;\n"
        )
    settled = f"  bringup_glue_settle(&value_{index});\n" if parameter.by_reference else ""
    return f"  {c_type} value_{index} = ({c_type})({code});\n{settled}"


def _given(index: int, parameter: CParameter) -> str:
    if parameter.by_reference:
        return f"BRINGUP_GLUE_ADDRESS((void*)&value_{index})"
    value = f"value_{index}"
    return f"BRINGUP_GLUE_ADDRESS({value})" if parameter.c_type == "void*" else value


_TEXT = """\
#include "bringup/glue.h"
{source}

static const char* bringup_glue_refuse(void** args, const bringup_ctx* ctx) {{
  (void)args;
  (void)ctx;
{refusals}  return NULL;
}}
{body}
BRINGUP_GLUE_EXPORT const char* bringup_can_implement(void** args, int32_t n,
                                                      const bringup_ctx* ctx) {{
  (void)n;
{refuse}}}

BRINGUP_GLUE_EXPORT int32_t bringup_run(void** args, int32_t n, const bringup_ctx* ctx) {{
  (void)args;
  (void)n;
  (void)ctx;
{call}}}
"""

_KINDS = {"void*": "AnAddress", "int64_t": "ANumber", "double": "AFraction", "const char*": "AText"}
_SHOWN = {
    "AnAddress": "a pointer",
    "ANumber": "an int64_t",
    "AFraction": "a double",
    "AText": "a const char*",
}
# No member can be called so.
_KEYWORD = re.compile(
    "(alignas|alignof|and|and_eq|asm|auto|bitand|bitor|bool|break|case|catch|char|char8_t|char16_t"
    "|char32_t|class|compl|concept|const|const_cast|consteval|constexpr|constinit|continue"
    "|co_await|co_return|co_yield|decltype|default|delete|do|double|dynamic_cast|else|enum"
    "|explicit|export|extern|false|float|for|friend|goto|if|inline|int|long|mutable|namespace|new"
    "|noexcept|not|not_eq|nullptr|operator|or|or_eq|private|protected|public|register"
    "|reinterpret_cast|requires|return|short|signed|sizeof|static|static_assert|static_cast"
    "|struct|switch|template|this|thread_local|throw|true|try|typedef|typeid|typename|union"
    r"|unsigned|using|virtual|void|volatile|wchar_t|while|xor|xor_eq)\Z"
)

_CHECKS = """
#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
{members}extern "C++" {{
namespace bringup {{
namespace glue {{
template <class Declared>
struct Fits<Declared, bringup_glue_fields> {{
  BRINGUP_GLUE_FITS_SIZE(Declared, bringup_glue_fields);
{lines}}};
template <>
struct Fits<void, bringup_glue_fields> {{}};
}}
}}
}}
#pragma GCC diagnostic pop
BRINGUP_GLUE_HOOK(can_implement);
BRINGUP_GLUE_HOOK(workspace_size);
#endif
"""

_MEMBER = """\
#ifndef {name}
extern "C++" {{
BRINGUP_GLUE_MEMBER({name})
}}
#endif
"""

_TYPE_CHECK = """\
  static_assert(bringup::glue::accepts<Declared{given}>(0), {words});
"""

_PLACE_CHECK = """\
#ifndef {name}
  static_assert({check}({name}, {field}), {words});
#endif
"""

_PARAMETERS = """
typedef struct bringup_glue_fields {{
  bringup_params head;
{fields}}} bringup_glue_fields;
{checks}
static void bringup_glue_fill(bringup_glue_fields* p, void** args, const bringup_ctx* ctx) {{
  p->head.struct_size = sizeof *p;
  p->head.version = BRINGUP_PARAMS_VERSION;
  p->head.ctx = ctx;
  p->head.workspace = NULL;
  p->head.workspace_size = 0;
{values}  bringup_glue_settle(p);
}}

#define BRINGUP_GLUE_RUN(ctx, p) \\
  {entry}((uint32_t)({blocks}), BRINGUP_GLUE_ADDRESS((ctx)->stream), BRINGUP_GLUE_PARAMS(p))
"""

_REFUSE = """\
  return bringup_glue_refuse(args, ctx);
"""

_REFUSE_PARAMS = """\
  const char* reason = bringup_glue_refuse(args, ctx);
  if (reason != NULL) return reason;
  bringup_glue_fields fields;
  bringup_glue_fill(&fields, args, ctx);
  return BRINGUP_GLUE_CAN_IMPLEMENT(&fields);
"""

_CALL_PARAMS = """\
  bringup_glue_fields fields;
  bringup_glue_fill(&fields, args, ctx);
  if (bringup_glue_workspace(&fields.head, BRINGUP_GLUE_WORKSPACE_SIZE(&fields)) != 0) return 1;
  bringup_glue_settle(&fields);
  return BRINGUP_GLUE_STATUS(BRINGUP_GLUE_RUN(ctx, &fields));
"""
