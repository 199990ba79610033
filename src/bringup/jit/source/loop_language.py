"""What a target says of its language so that torch.compile's loop nests can be written in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoopLanguage:
    """The language in which torch.compile's loop nests are written for a target.

    The prelude declares, where the language itself does not:

    * the types `int8_t` to `int64_t`, `uint8_t` to `uint64_t`, `half_t` and `bfloat16_t` (as they
      lie in memory), and `BRINGUP_GLOBAL`, the address space of tensors;
    * `BRINGUP_FIRST(n)`, `BRINGUP_LAST(n)` and `BRINGUP_STEP`: which of `n` items a worker takes;
    * `load_half(p, i)`, `store_half(p, i, v)`, `round_half(v)` and the same with `bfloat16`, for
      numbers computed with as float;
    * `bitcast_float_int32(v)`, `bitcast_int32_float(v)` and, with float64, `bitcast_double_int64`
      and `bitcast_int64_double`;
    * with `shared`, `BRINGUP_LOCAL`, the address space of what the threads of a block share,
      declared at the beginning of a kernel, `BRINGUP_BLOCK`, `BRINGUP_THREAD` (of a block) and
      `BRINGUP_BARRIER()`: every thread of the block is there, and sees what the others wrote;
      `BRINGUP_TOGETHER()`: they wait where a processor computes them as a vector, else nothing;
    * C's functions of math.h by their names, for float with the suffix `f`; `INFINITY` and `NAN`;
    * `atomic_add_T(p, v)` for each type of `atomics`, in the body of a kernel;
    * with lanes, `transpose_square(to, from, step)`: 16 x 16 elements of 4 bytes, of which those of
      a row are `step` elements apart in memory, and rows lie side by side, to rows one after the
      other;
    * `report_fault(fault, number, value)`: keep the first of all workers' reports in the 16 bytes
      at `fault`, a `BRINGUP_GLOBAL int32_t*`: the worker that turns the second int32 from 0 into 1
      writes `value` into the last eight bytes, and then `number` into the first int32.

    Attributes:
        suffix: of the files, which names the language.
        prelude: what generated texts begin with.
        float64: what follows it where the device has numbers of 64 bits.
        entry: a kernel's head, with `{name}` and `{parameters}`.
        flags: compiler options beside those of every build.
        lanes: elements that one worker computes side by side; 1 where the device's own threads do.
        threads: of a block.
        shared: whether the threads of a block have memory and barriers in common. A block then
            computes one result of a long reduction, and otherwise a thread one result: there are
            as many blocks as that takes.
        elements: that are worth a block; with `shared` those of `threads`.
        most_blocks: of a launch; with `shared` more than any tensor has elements for.
        atomics: the C types that can be added to by several workers at once.
    """

    suffix: str
    prelude: str
    entry: str
    float64: str = ""
    flags: tuple[str, ...] = ()
    lanes: int = 1
    threads: int = 1
    shared: bool = False
    elements: int = 1 << 14
    most_blocks: int = 1 << 16
    atomics: tuple[str, ...] = ()
