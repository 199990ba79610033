"""Constants from Python values: numbers, nested lists, numpy arrays."""

from __future__ import annotations

from bringup.ir.tensor import ConstantData

_NUMPY_DTYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16",
    "float32", "float64", "complex64", "complex128",
)  # fmt: skip


def constant_payload(values: object, dtype: str | None = None) -> object:
    """Return what a constant holds, by value: integers are int64, other numbers float32, unless
    `dtype` says otherwise. A tensor of a framework (anything with `detach`) stays what it is.

    Raises `TypeError` for values that make no array, `ValueError` for a dtype there is none of.
    """
    if hasattr(values, "detach"):
        if dtype is not None:
            raise TypeError("a tensor has its own dtype: give no other, or convert it first")
        return values
    import numpy as np

    try:
        array = np.array(values)
    except ValueError as error:
        raise TypeError(f"these values make no tensor: {error}") from error
    if array.dtype.kind not in "biufc":
        raise TypeError(f"these values make no tensor of numbers: {values!r}")
    if isinstance(values, (bool, int, float, complex, list, tuple)) and dtype is None:
        dtype = {"i": "int64", "f": "float32", "c": "complex64"}.get(array.dtype.kind)
    name = dtype or str(array.dtype)
    if name == "bfloat16":
        return ConstantData(name, array.shape, _bfloat16(array.astype(np.float32)))
    if name not in _NUMPY_DTYPES:
        raise ValueError(f"there is no constant of dtype {name!r}; there are {_NUMPY_DTYPES}")
    return ConstantData(name, array.shape, np.ascontiguousarray(array.astype(name)).tobytes())


def _bfloat16(array: object) -> bytes:
    """Return the upper halves of float32 numbers, rounded to nearest even; NaN stays NaN."""
    import numpy as np

    numbers = np.ascontiguousarray(array, dtype=np.float32)
    bits = numbers.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), 0x7FC0, rounded).astype(np.uint16).tobytes()
