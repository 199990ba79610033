"""Rows of the table whose kernels take images in any layout: convolution, batch norm, pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bringup.devices import Operator
from bringup_opencl._rows import each, raw

__all__ = ["IMAGES"]

_NORM_LANES = 256  # kernels/batch_norm.cl
_LIMIT = 2**31  # kernels count elements and places with 32 bits


def _image(name: str) -> str:
    """Return address and strides; three dimensions are one sample."""
    return ", ".join([f"ptr({name})", *(f"stride({name}, {d})" for d in (0, -3, -2, -1))])


def _numbers(*texts: str) -> str:
    return ", ".join(f"i32({text})" for text in texts)


def _pair(name: str) -> tuple[str, str]:
    """Return both numbers of a list, of which one may stand for both."""
    return f"{name}[0]", f"{name}[1] + {name}[0] * (len({name}) == 1)"


def _step() -> tuple[str, str]:
    """Return the stride of a pool: without one its windows lie side by side."""
    (tall, wide), (down, right), none = _pair("kernel_size"), _pair("stride"), "(len(stride) == 0)"
    return f"{down} + {none} * ({tall})", f"{right} + {none} * ({wide})"


def _small(*names: str) -> str:
    return " and ".join(f"numel({name}) < {_LIMIT}" for name in names)


def _taken(blocks: str, where: str) -> str:
    """Return the blocks; elsewhere the operator falls back."""
    return f"({blocks} + 1) * ({where}) - 1"


def _tiles(count: str) -> str:
    return f"(({count} + 31) // 32)"


_MADE = "size(weight, 0) // groups"
_WINDOW = "size(weight, -2)", "size(weight, -1)"
_MOVED = [f"{name}[{d}]" for name in ("stride", "padding", "dilation") for d in (0, 1)]
# Of images, by lists with a number for each dimension.
_CONVOLUTION = (
    "ndim(input) == 4 and ndim(weight) == 4 and transposed == 0 and len(stride) == 2 and "
    "len(padding) == 2 and len(dilation) == 2"
)


def _convolution() -> Operator:
    height, width = "size(out, -2)", "size(out, -1)"
    sizes = _numbers(
        "size(input, 0)", "size(weight, 1)", "size(input, -2)", "size(input, -1)", _MADE, height,
        width, *_WINDOW, *_MOVED,
    )  # fmt: skip
    tensors = f"{_image('input')}, {_image('weight')}, ptr(bias), {_image('out')}"
    blocks = _tiles(f"size(out, 0) * {height} * {width}")
    where = f"{_CONVOLUTION} and {_small('input', 'weight', 'out')}"
    return raw(
        "convolution_overrideable",
        "convolution.cl:convolution",
        f"{tensors}, {sizes}",
        (_taken(blocks, where), _tiles(_MADE), "groups"),
        block=(8, 8),
        strided="input weight out",
    )


def _convolution_backward() -> Operator:
    sizes = _numbers(
        "size(input, 0)", "size(weight, 1)", "size(input, -2)", "size(input, -1)", _MADE,
        "size(grad_output, -2)", "size(grad_output, -1)", *_WINDOW, *_MOVED,
    )  # fmt: skip
    names = ("grad_output", "input", "weight", "out0", "out1")
    tensors = ", ".join([*map(_image, names), "ptr(out2)"])
    pixels = "size(input, 0) * size(input, -2) * size(input, -1)"
    weights = f"size(weight, 1) * {_WINDOW[0]} * {_WINDOW[1]} * has(out1) + has(out2)"
    blocks = (
        f"{_tiles('size(weight, 1)')} * {_tiles(pixels)} * has(out0) + "
        f"{_tiles(_MADE)} * {_tiles(weights)}"
    )
    where = f"{_CONVOLUTION} and {_small('grad_output', 'input', 'weight')}"
    return raw(
        "convolution_backward_overrideable",
        "convolution.cl:convolution_backward",
        f"{tensors}, {sizes}",
        (_taken(f"({blocks})", where), "1", "groups"),
        block=(8, 8),
        strided="grad_output input weight out0 out1",
        dtypes={"T": "grad_output"},
    )


def _plane(name: str) -> tuple[str, str]:
    """Return height and width, of a row of elements and of single ones, too."""
    height = f"size({name}, -2) * (ndim({name}) == 4) + (ndim({name}) != 4)"
    return height, f"size({name}, -1) * (ndim({name}) > 2) + (ndim({name}) == 2)"


def _channels(name: str) -> str:
    """Return address and strides as samples, channels, rows and columns."""
    return ", ".join([f"ptr({name})", *(f"stride({name}, {d})" for d in (0, 1, -2, -1))])


def _batch_norm(name: str, tensors: str, numbers: str, first: str) -> Operator:
    sizes = _numbers(*_plane("input"), "numel(input) // size(input, 1)")
    where = f"ndim(input) < 5 and numel(input) > 0 and {_small('input')}"
    return raw(
        name,
        f"batch_norm.cl:{name.removeprefix('native_')}",
        f"{tensors}, {numbers}, {sizes}",
        _taken("size(input, 1)", where),
        block=_NORM_LANES,
        strided=f"{first} out0",
    )


def _pool(
    name: str,
    entry: str,
    images: Sequence[str],
    windows: Sequence[tuple[str, str]] = (),
    more: Sequence[str] = (),
    dtypes: Mapping[str, str] | None = None,
) -> Operator:
    """Return a row; `self` is what lies under the windows, forward and backward."""
    written = next(image for image in images if image.startswith("out"))
    made = images[0] if images[0] == "grad_output" else written
    sizes = _numbers(
        "size(self, -3)", "size(self, -2)", "size(self, -1)", f"size({made}, -2)",
        f"size({made}, -1)", *(one for pair in windows for one in pair), *more, f"numel({written})",
    )  # fmt: skip
    return raw(
        name,
        f"pooling.cl:{entry}",
        f"{', '.join(map(_image, images))}, {sizes}",
        _taken(f"({each(f'numel({written})')})", _small("self", made)),
        strided=" ".join(dict.fromkeys(("self", *images))),
        dtypes=dtypes,
    )


_MAX = (_pair("kernel_size"), _step(), _pair("padding"), _pair("dilation"))
_MEAN = (_pair("kernel_size"), _step(), _pair("padding"))
_DIVISOR = ("count_include_pad", "divisor_override")

IMAGES: tuple[Operator, ...] = (
    _convolution(),
    _convolution_backward(),
    _batch_norm(
        "native_batch_norm",
        f"{_channels('input')}, ptr(weight), ptr(bias), ptr(running_mean), ptr(running_var), "
        f"{_channels('out0')}, ptr(out1), ptr(out2)", "i32(training), f32(momentum), f32(eps)",
        "input",
    ),
    _batch_norm(
        "native_batch_norm_backward",
        f"{_channels('grad_out')}, {_channels('input')}, ptr(weight), ptr(running_mean), "
        f"ptr(running_var), ptr(save_mean), ptr(save_invstd), {_channels('out0')}, ptr(out1), "
        "ptr(out2)", "i32(train), f32(eps)", "grad_out input",
    ),
    _pool("max_pool2d_with_indices", "max_pool", ("self", "out0", "out1"), _MAX),
    _pool(
        "max_pool2d_with_indices_backward", "max_pool_backward", ("grad_output", "indices", "out"),
        _MAX, dtypes={"T": "self", "I": "indices"},
    ),
    _pool("avg_pool2d", "mean_pool", ("self", "out"), _MEAN, _DIVISOR),
    _pool("avg_pool2d_backward", "mean_pool_backward", ("grad_output", "out"), _MEAN, _DIVISOR),
    _pool("_adaptive_avg_pool2d", "shared_pool", ("self", "out")),
    _pool("_adaptive_avg_pool2d_backward", "shared_pool_backward", ("grad_output", "out")),
)  # fmt: skip
