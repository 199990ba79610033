"""Rows of the table for what `fused=True` of torch.optim calls: lists of parameters as launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bringup.devices import Operator
from bringup_opencl._rows import raw

__all__ = ["optimizers"]

_VALUES = 64  # that a launch has at most
_ADAM = ("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps")
_SGD = ("self", "grads", "momentum_buffer_list")


def _row(
    name: str, entry: str, lists: Sequence[str], numbers: Sequence[str], options: Sequence[str]
) -> Operator:
    """Return a row; each tensor of the lists is followed by how many elements it has."""
    most = (_VALUES - len(numbers)) // (len(lists) + 1)
    tensors = [
        one
        for i in range(most)
        for one in (*(f"ptr({each}[{i}])" for each in lists), f"numel(self[{i}])")
    ]
    blocks = " + ".join(f"(numel(self[{i}]) + 1023) // 1024" for i in range(most))
    made = raw(
        name,
        f"optimizers.cl:{entry}",
        ", ".join([*tensors, *numbers]),
        blocks,
        block=256,
        strided=" ".join(lists),
        dtypes={"T": "self"},
    )
    return replace(made, flags=tuple(f"-D{option}" for option in options))


def optimizers(wide: bool) -> tuple[Operator, ...]:
    """Return the rows, for a device with numbers of 64 bits (`wide`) or without."""
    real = "double" if wide else "float"

    def numbers(names: str) -> list[str]:
        return [one if wide else f"f32({one})" for one in names.split()]

    rows = []
    for overload, rate in (("", numbers("lr")), (".tensor_lr", ["ptr(lr)"])):
        options = [f"REAL={real}", *(["TENSOR_LR"] if overload else [])]
        scaled = ["ptr(grad_scale)", "ptr(found_inf)"]
        for name, kind in (("adam", 1), ("adamw", 2)):
            more = [*rate, *numbers("beta1 beta2 weight_decay eps")]
            more += ["i32(amsgrad + 2 * maximize)", *scaled]
            asked = [*options, f"ADAM={kind}"]
            rows.append(_row(f"_fused_{name}_{overload or '.default'}", "adam", _ADAM, more, asked))
        more = [*numbers("weight_decay momentum"), *rate, *numbers("dampening")]
        more += ["i32(nesterov + 2 * maximize + 4 * is_first_step)", *scaled]
        rows.append(_row(f"_fused_sgd_{overload or '.default'}", "sgd", _SGD, more, options))
    return tuple(rows)
