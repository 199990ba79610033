"""The table of lying drivers and the sentence that each gets, which check-a-driver.md shows.

Each lie is `drivers/lying.c` built with -DLIE_<macro>: the simulator, which is wrong in one way.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LIES", "Lie", "markdown"]


@dataclass(frozen=True)
class Lie:
    """A lie.

    Attributes:
        macro: what it is built with.
        what: the driver does, for people.
        sentence: what loading it says, `*` standing for addresses, numbers and the like.
    """

    macro: str
    what: str
    sentence: str


LIES = [
    # --- its start and its table
    Lie("CONSTRUCTOR", "ends the process when it is loaded", "crashed with SIGABRT in dlopen"),
    Lie("INIT", "`init` fails", "init returned BRINGUP_DEVICE_LOST"),
    Lie(
        "GROUP",
        "announces a group without its function",
        "its capabilities announce BRINGUP_HAS_POINTERS, but its function 'pointer_info' is NULL",
    ),
    Lie(
        "PAIR",
        "has `host_alloc` without `host_free`",
        "host_free is NULL, and host_alloc is of no use without it",
    ),
    Lie("NAME", "calls its device `cuda1`", "device_name is 'cuda1'"),
    # --- devices
    Lie("COUNT_NONE", "has 0 devices", "it has no device"),
    Lie("COUNT_MANY", "has 65 devices", "it has 65 devices, at most 64 are supported"),
    Lie("COUNT_FAILS", "cannot count", "device_count returned BRINGUP_DEVICE_LOST"),
    Lie("COUNT_HANGS", "`device_count` hangs", "device_count has not returned after 10 s"),
    Lie("COUNT_CHANGES", "counts 1, then 2", "device_count changes from call to call"),
    Lie("PROPS_NAME", "`name` does not end", "device_props gave a name without an end"),
    Lie("PROPS_ARCH", "`arch` does not end", "device_props gave an arch without an end"),
    Lie(
        "PROPS_VERSION",
        "`driver_version` does not end",
        "device_props gave a driver_version without an end",
    ),
    Lie(
        "PROPS_BEYOND",
        "writes beyond the structure",
        "device_props wrote behind the structure that it was given",
    ),
    Lie(
        "PROPS_MEMORY",
        "`total_memory` is 0",
        "device_props says that the device has no memory",
    ),
    Lie(
        "PROPS_ALIGNMENT",
        "`alignment` is 96",
        "device_props gave the alignment 96, which is no power of two of at least 64",
    ),
    Lie(
        "PROPS_ADDRESSES",
        "announces an alignment that its addresses do not have",
        "mem_alloc gave the address *, which is not 1048576-byte aligned",
    ),
    Lie(
        "PROPS_DTYPES",
        "has `float32` alone",
        "device_props gave dtypes without int64 or bool, which torch needs on every device",
    ),
    # --- memory
    Lie("ALLOC_NULL", "gives NULL", "mem_alloc returned BRINGUP_OK and no address"),
    Lie(
        "ALLOC_MISALIGNED",
        "gives addresses between",
        "mem_alloc gave the address *, which is not 256-byte aligned",
    ),
    Lie(
        "ALLOC_TWICE",
        "gives one address twice",
        "mem_alloc gave * bytes at * of device 0, which overlap the * bytes at * that are still"
        " in use",
    ),
    Lie(
        "ALLOC_OVERLAP",
        "gives memory that ends in other memory",
        "mem_alloc gave 65536 bytes at * of device 0, which overlap the * bytes at * that are"
        " still in use",
    ),
    Lie(
        "ALLOC_END",
        "gives the last bytes of the address space",
        "mem_alloc gave the address *, behind which there are no * bytes",
    ),
    Lie(
        "ALLOC_STATUS",
        "an allocation is `BRINGUP_NOT_READY`",
        "mem_alloc returned BRINGUP_NOT_READY, which only queries may",
    ),
    Lie("INFO_FREE", "more is free than there is", "mem_info says that * bytes of * are free"),
    Lie(
        "INFO_TOTAL",
        "has more than `total_memory`",
        "mem_info says that there are * bytes, device_props says *",
    ),
    # --- copies and fills
    Lie(
        "COPY_NOTHING",
        "copies nothing",
        "copy_async to the device of 1 bytes at offset 0: * of 513 bytes are wrong, the first at *",
    ),
    Lie(
        "COPY_HALF",
        "copies the first half",
        "copy_async to the device of 1 bytes at offset 0: * bytes are wrong, the first at 256",
    ),
    Lie(
        "COPY_SHIFTED",
        "copies from a byte further on",
        "copy_async to the device of 1 bytes at offset 0: * bytes are wrong, the first at 0",
    ),
    Lie(
        "COPY_ALIGNED",
        "copies to whole words",
        "copy_async to the device of 1 bytes at offset 1: 2 of 513 bytes are wrong, the first at 0",
    ),
    Lie(
        "COPY_LONG",
        "copies a byte too much",
        "copy_async to the device of 63 bytes at offset 0: 1 of 575 bytes are wrong, the first at"
        " 63",
    ),
    Lie(
        "COPY_BACKWARDS",
        "copies the target to the source",
        "copy_async on the device of 1 bytes at offset 2: 1 of 513 bytes are wrong, the first at 2",
    ),
    Lie(
        "COPY_STATUS",
        "returns 57",
        "copy_async returned the status 57, which there is not",
    ),
    Lie("COPY_REFUSES", "copies nothing and says so", "copy_async returned BRINGUP_UNSUPPORTED"),
    Lie("COPY_CRASHES", "crashes", "crashed with SIGSEGV in copy_async"),
    Lie("COPY_HANGS", "hangs", "copy_async has not returned after 10 s"),
    Lie(
        "COPY_EXITS",
        "ends the process",
        "the driver ended the process with exit code 3 in copy_async",
    ),
    Lie(
        "FILL_NOTHING",
        "fills nothing",
        "fill_async of 1 bytes at offset 0: 1 of 513 bytes are wrong, the first at 0",
    ),
    Lie(
        "FILL_SHORT",
        "fills whole words",
        "fill_async of 1 bytes at offset 0: 1 of 513 bytes are wrong, the first at 0",
    ),
    Lie(
        "FILL_VALUE",
        "fills with 0 or 1",
        "fill_async of 1 bytes at offset 0: 1 of 513 bytes are wrong, the first at 0",
    ),
    # --- streams and events
    Lie("STREAM_NULL", "gives no stream", "stream_create returned BRINGUP_OK and no handle"),
    Lie(
        "STREAM_TWICE",
        "gives one stream twice",
        "stream_create gave a handle that is still in use: each has to be its own",
    ),
    Lie("SYNC_EARLY", "a wait does not wait", "*copy_async to the device of * bytes are wrong*"),
    Lie("EVENT_NULL", "gives no event", "event_create returned BRINGUP_OK and no handle"),
    Lie(
        "EVENT_TWICE",
        "gives one event twice",
        "event_create gave a handle that is still in use: each has to be its own",
    ),
    Lie(
        "EVENT_NEVER",
        "no event is ever done",
        "event_query still returns BRINGUP_NOT_READY 4 s after the record",
    ),
    Lie(
        "EVENT_EARLY",
        "every event is done at once",
        "event_query returned BRINGUP_OK while a host function in front of event_record had not"
        " ended",
    ),
    Lie(
        "WAIT_NOTHING",
        "`event_wait` does nothing",
        "event_wait did not hold the stream back: its copy *",
    ),
    Lie("ELAPSED_NAN", "the time is NaN", "event_elapsed gave no finite number of milliseconds"),
    Lie(
        "ELAPSED_NEGATIVE",
        "the time is negative",
        "event_elapsed says -* ms for work that the host waited * ms for",
    ),
    Lie(
        "ELAPSED_UNIT",
        "the time is in nanoseconds",
        "event_elapsed says * ms for work that the host waited * ms for",
    ),
    # --- what host and device share, graphs
    Lie("HOST_NULL", "gives no pinned memory", "host_alloc returned BRINGUP_OK and no address"),
    Lie("VIEW_NULL", "gives no view", "host_view returned BRINGUP_OK and no address"),
    Lie(
        "VIEW_ELSEWHERE",
        "views other memory",
        "host_view does not show what was copied to the device: * bytes are wrong, the first at *",
    ),
    Lie(
        "VIEW_UNMAPPED",
        "views no memory",
        "crashed with SIGSEGV in the memory that host_view gave",
    ),
    Lie("GRAPH_NULL", "gives no graph", "graph_create returned BRINGUP_OK and no handle"),
    Lie(
        "GRAPH_TWICE",
        "gives one graph twice",
        "graph_create gave a handle that is still in use: each has to be its own",
    ),
]


def markdown() -> str:
    """The table, as the documentation shows it."""
    rows = [f"| {lie.what} | {lie.sentence.replace('*', '...')} |" for lie in LIES]
    return "\n".join(["| the driver | what loading it says |", "|---|---|", *rows])
