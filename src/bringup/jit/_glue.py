"""Generated entries: a few lines of C around a source make kernel.h's entry of any other form.

So whatever starts kernels (calls, the simulator, graph nodes) knows one form, and a launch costs
nothing more. Owns the text of these lines; what the pieces mean is in include/bringup/glue.h.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bringup.jit._items import Item
from bringup.jit._source import Source

__all__ = ["ENTRY", "Form", "Glued", "glue"]

ENTRY = "bringup_run"
Form = Literal["params", "ascendc", "function"]


@dataclass(frozen=True)
class Glued:
    """A source with its generated entry, and the flags that it needs to be found."""

    source: Source
    flags: tuple[str, ...]


def glue(source: Source, form: Form, items: Sequence[Item], blocks: str = "1") -> Glued:
    """`source`, whose entry has the given form, as a source with an entry of kernel.h's form.

    Args:
        source: defines the entry: `run(block_num, stream, params)` for `"params"`,
            `aclrtlaunch_<entry>(block_dim, stream, items...)` for `"ascendc"`, `<entry>(items...)`
            for `"function"`. It is included, so its own headers are found beside it.
        form: which of these.
        items: what the entry gets.
        blocks: the C expression of block_num and block_dim.
    """
    text = _TEXT.format(
        source=_included(source),
        name=source.name,
        dimensions=_dimensions(items),
        body=_parameters(source.entry, items, blocks) if form == "params" else "",
        refuse=_REFUSE_PARAMS if form == "params" else _REFUSE,
        call=_CALL_PARAMS if form == "params" else _call(source.entry, form, items, blocks),
    )
    stem, suffix = os.path.splitext(source.file_name)
    glued = Source(text=text, name=f"{stem}.entry{suffix}", entry=ENTRY, kind=source.kind)
    return Glued(glued, (f"-iquote{source.directory}",) if source.path is not None else ())


def _included(source: Source) -> str:
    if source.path is not None:
        return f'#include "{source.file_name}"'
    return f'#line 1 "{source.name}"\n{source.text}\n#line 1 "{source.name} (its entry)"'


def _dimensions(items: Sequence[Item]) -> str:
    """Refuses tensors without the dimensions that items name."""
    lines = []
    for item in items:
        if item.index is None:
            continue
        check = f"bringup_glue_has_dimension(args[{item.argument}], {item.index})"
        reason = f"the kernel takes {item.text}, a dimension that the tensor does not have"
        lines.append(f'  if (!{check}) return "{reason}";\n')
    return "".join(dict.fromkeys(lines))


def _parameters(entry: str, items: Sequence[Item], blocks: str) -> str:
    fields = "".join(f"  {item.c_type} field_{i};\n" for i, item in enumerate(items))
    values = "".join(f"  p->field_{i} = {item.code};\n" for i, item in enumerate(items))
    return _PARAMETERS.format(fields=fields, values=values, entry=entry, blocks=blocks)


def _call(entry: str, form: Form, items: Sequence[Item], blocks: str) -> str:
    given = [
        f"BRINGUP_GLUE_ADDRESS({item.code})" if item.c_type == "void*" else item.code
        for item in items
    ]
    if form == "ascendc":
        entry = f"aclrtlaunch_{entry}"
        given = [f"(uint32_t)({blocks})", "BRINGUP_GLUE_ADDRESS(ctx->stream)", *given]
    return f"  return BRINGUP_GLUE_STATUS({entry}({', '.join(given)}));\n"


_TEXT = """\
#include "bringup/glue.h"
{source}

static const char* bringup_glue_refuse(void** args) {{
  (void)args;
{dimensions}  return NULL;
}}
{body}
BRINGUP_GLUE_EXPORT const char* bringup_can_implement(void** args, int32_t n,
                                                      const bringup_ctx* ctx) {{
  (void)n;
  (void)ctx;
{refuse}}}

BRINGUP_GLUE_EXPORT int32_t bringup_run(void** args, int32_t n, const bringup_ctx* ctx) {{
  (void)args;
  (void)n;
{call}}}
"""

_PARAMETERS = """
typedef struct bringup_glue_fields {{
  bringup_params head;
{fields}}} bringup_glue_fields;

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
  return bringup_glue_refuse(args);
"""

_REFUSE_PARAMS = """\
  const char* reason = bringup_glue_refuse(args);
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
