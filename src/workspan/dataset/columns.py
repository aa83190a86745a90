"""Columns of Arrow made of Python and NumPy values, and the other way round.

``pyarrow.array`` of a list and ``to_numpy`` of anything but plain numbers import pandas first, whoever asks: 0.2 to 1 s
of every new worker. So the common kinds of values are put into buffers, and taken out of them, here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from workspan.errors import DataError

__all__ = ["array_of", "column_of", "from_numpy", "is_nested", "is_same", "mask_array"]

_Array = np.ndarray[Any, Any]

# -- into Arrow ------------------------------------------------------------------------------------------------------


def column_of(name: str, values: Any, where: str, hint: pa.DataType | None = None) -> Any:
    """Return a column of Arrow from whatever it is given as.

    Parameters
    ----------
    hint
        A type to try where none can be found out from the values.

    Raises
    ------
    DataError
        It is one value and not one a row, or its values have types that do not go together, or none that Arrow knows.
    """
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    is_one = isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable)
    if is_one or (isinstance(values, np.ndarray) and not values.ndim):
        kind = type(values).__name__
        raise DataError(
            f"{where}: column {name!r} is one value, {str(values)[:60]!r} of type {kind}: give one value a row, for "
            "example numpy.full(rows, value)"
        )
    try:
        if isinstance(values, np.ndarray):
            return from_numpy(values)
        values = list(values)
        first = next((value for value in values if value is not None), None)
        if isinstance(first, np.ndarray) and first.ndim:
            if all(isinstance(v, np.ndarray) and v.shape == first.shape and v.dtype == first.dtype for v in values):
                return from_numpy(np.stack(values))
            values = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
        if hint is not None and pa.types.is_nested(hint) and _has_ns(hint) and all(_fits(v, hint) for v in values):
            # Of what is nested Arrow guesses units that are too coarse.
            with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
                return pa.array(values, hint)
        return _from_list(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if hint is not None:
            with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
                return pa.array(values.tolist() if isinstance(values, np.ndarray) else values, hint)
        kinds = sorted({type(value).__name__ for value in values})[:5]
        raise DataError(
            f"{where}: column {name!r} cannot be made into an Arrow column of its values of type "
            f"{', '.join(kinds)}: {error}. Return values of one type that Arrow knows"
        ) from error


_PLAIN = {int: np.int64, float: np.float64, bool: np.bool_}


def _has_ns(kind: pa.DataType) -> bool:
    """Whether there are times in ns in what is nested."""
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return bool(kind.unit == "ns")
    return any(_has_ns(kind.field(number).type) for number in range(kind.num_fields))


def _fits(value: Any, kind: pa.DataType) -> bool:
    """Whether no part of a value is lost in a nested type: Arrow passes over names that a struct has no field for."""
    if value is None or not pa.types.is_nested(kind):
        return True
    if pa.types.is_struct(kind):
        fields = {kind.field(number).name: kind.field(number).type for number in range(kind.num_fields)}
        return isinstance(value, Mapping) and all(
            name in fields and _fits(v, fields[name]) for name, v in value.items()
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return isinstance(value, Iterable) and all(_fits(part, kind.value_type) for part in value)
    return not pa.types.is_union(kind)


def _from_list(values: list[Any]) -> Any:
    kinds = set(map(type, values))
    if any(kind.__name__ == "NaTType" for kind in kinds):  # pandas' word for None
        values = [None if type(value).__name__ == "NaTType" else value for value in values]
        kinds = set(map(type, values))
    has_nulls = type(None) in kinds
    kinds.discard(type(None))
    if len(kinds) != 1:
        return pa.array(values) if kinds else pa.nulls(len(values))
    (kind,) = kinds
    if kind is str or kind is bytes:
        found = _from_texts(values, kind, has_nulls)
        return pa.array(values) if found is None else found
    if kind in _PLAIN:
        mask = np.array([value is None for value in values]) if has_nulls else None
        with suppress(OverflowError):
            filled = [0 if value is None else value for value in values] if has_nulls else values
            return from_numpy(np.array(filled, _PLAIN[kind]), mask)
    elif issubclass(kind, np.generic) and not has_nulls and np.dtype(kind).kind in "iufb":
        return from_numpy(np.array(values))
    elif kind.__name__ in ("Timestamp", "Timedelta") and kind.__module__.partition(".")[0] == "pandas":
        return _from_moments(values)
    return pa.array(values)


def _from_moments(values: list[Any]) -> Any:
    """Return a column of times of pandas: Arrow takes them for those of Python, and drops what is below 1 us."""
    found = pa.array(values)
    if not any(getattr(value, "unit", "ns") == "ns" for value in values if value is not None):
        return found
    is_moment = pa.types.is_timestamp(found.type)
    return pa.array(values, pa.timestamp("ns", found.type.tz) if is_moment else pa.duration("ns"))


def _from_texts(values: list[Any], kind: type, has_nulls: bool) -> Any:
    """Return a column of texts, or of bytes; ``None`` if one such column cannot hold as much."""
    mask = np.array([value is None for value in values]) if has_nulls else None
    if has_nulls:
        empty = kind()
        values = [empty if value is None else value for value in values]
    data = "".join(values).encode() if kind is str else b"".join(values)
    sizes = list(map(len, values))
    if sum(sizes) < len(data):  # not all of it is ASCII
        sizes = [len(value.encode()) for value in values]
    if len(data) > np.iinfo(np.int32).max:
        return None
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [_validity(mask), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string() if kind is str else pa.binary(), len(values), buffers)


def mask_array(values: list[bool]) -> Any:
    """Return truth values as a column."""
    return from_numpy(np.array(values, np.bool_))


def _validity(null: _Array | None) -> Any:
    return None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))


def from_numpy(values: _Array, null: _Array | None = None) -> Any:
    """Return an array as a column; one of several axes as a column of tensors.

    Parameters
    ----------
    null
        Where there is no value, of one axis; ``None``: everywhere is one.
    """
    if values.ndim == 0:
        raise ValueError("it is a single number, not one value a row")
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if type(values) is not np.ndarray and "numpy.ma" in sys.modules and isinstance(values, np.ma.MaskedArray):
        if values.ndim > 1 and np.ma.is_masked(values):
            raise ValueError("values of an array of several axes are masked, and a tensor has no place for nulls")
        if np.ma.is_masked(values) and values.dtype.kind not in "iufb":
            return _from_list(values.tolist())
        null = np.ma.getmaskarray(values) if np.ma.is_masked(values) else None
        values = values.data
    if values.ndim > 1:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))
    kind = values.dtype.kind
    if kind in "iuf" and values.dtype.itemsize <= 8:
        return _from_buffer(pa.from_numpy_dtype(values.dtype), values, null)
    if kind == "b":
        bits = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [_validity(null), pa.py_buffer(bits)])
    if kind in "mM" and (target := _TIMES.get(values.dtype.name)) is not None:
        missing = np.isnat(values)
        numbers = values.view(np.int64)
        if pa.types.is_date32(target):
            numbers = np.where(missing, 0, numbers).astype(np.int32)
        return _from_buffer(target, numbers, missing if missing.any() else None)
    return _from_list(values.tolist()) if kind in "OUS" else pa.array(values)


_TIMES: dict[str, Any] = {"datetime64[D]": pa.date32()} | {
    f"{name}64[{unit}]": kind(unit)
    for name, kind in (("datetime", pa.timestamp), ("timedelta", pa.duration))
    for unit in ("s", "ms", "us", "ns")
}


def _from_buffer(kind: Any, values: _Array, null: _Array | None) -> Any:
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [_validity(null), buffer])


# -- out of Arrow ----------------------------------------------------------------------------------------------------


def array_of(column: pa.ChunkedArray, zero_copy: bool = True) -> _Array:
    """Return a column as an array.

    Parameters
    ----------
    zero_copy
        It may be a view of the column, and is read-only. Else it is writable and nobody else's.
    """
    if isinstance(column.type, pa.FixedShapeTensorType):
        parts = [chunk.to_numpy_ndarray() for chunk in column.chunks]
    else:
        parts = list(map(_view, column.chunks))
    if not parts:
        parts = [column.to_numpy()]
    array = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if not zero_copy:
        return np.array(array)
    # The memory may be the block's; and what cannot have been changed need not be made into a column again.
    array.flags.writeable = False
    return array


def is_nested(kind: pa.DataType) -> bool:
    """Whether values of a type are objects that can be changed in place."""
    return bool(pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def is_same(one: Any, other: Any) -> bool:
    """Whether two values have the same parts of the same types; what is no number equals itself.

    Examples
    --------
    >>> is_same([1, {"a": float("nan")}], [1, {"a": float("nan")}]), is_same([1], [1.0])
    (True, False)
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        if one.dtype.kind == "O":
            return all(map(is_same, one.ravel(), other.ravel()))
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fcmM"))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(value, other[name]) for name, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one is other or bool(one == other) or bool(one != one and other != other)


def _view(chunk: pa.Array) -> _Array:
    """Return the values; plain numbers without nulls as a view."""
    kind = chunk.type
    t = pa.types
    if not len(chunk):
        found: _Array = chunk.to_numpy(zero_copy_only=False)
        return found
    if t.is_integer(kind) or t.is_floating(kind):
        values = _numbers(chunk, kind.to_pandas_dtype())
        if chunk.null_count:
            values = values.astype(values.dtype if t.is_floating(kind) else np.float64)
            values[~_valid(chunk)] = np.nan
        return values
    if t.is_boolean(kind):
        bits = np.unpackbits(np.frombuffer(chunk.buffers()[1], np.uint8), bitorder="little")
        values = bits[chunk.offset : chunk.offset + len(chunk)].view(np.bool_)
        return _with_none(values.astype(object), chunk) if chunk.null_count else values
    if t.is_timestamp(kind) or t.is_duration(kind):
        return _with_nat(_numbers(chunk, np.int64).view(f"{'M' if t.is_timestamp(kind) else 'm'}8[{kind.unit}]"), chunk)
    if t.is_date32(kind):
        return _with_nat(_numbers(chunk, np.int32).astype("M8[D]"), chunk)
    is_text = t.is_string(kind) or t.is_large_string(kind)
    # For millions of texts pyarrow is faster, but not for as many as pay for importing pandas.
    if (is_text or t.is_binary(kind) or t.is_large_binary(kind)) and "pandas" not in sys.modules:
        return _texts(chunk, is_text, np.int64 if t.is_large_string(kind) or t.is_large_binary(kind) else np.int32)
    found = chunk.to_numpy(zero_copy_only=False)
    return found


def _numbers(chunk: pa.Array, dtype: Any) -> _Array:
    return np.frombuffer(chunk.buffers()[1], dtype, chunk.offset + len(chunk))[chunk.offset :]


def _valid(chunk: pa.Array) -> _Array:
    bits = np.unpackbits(np.frombuffer(chunk.buffers()[0], np.uint8), bitorder="little")
    return bits[chunk.offset : chunk.offset + len(chunk)].view(np.bool_)


def _with_nat(values: _Array, chunk: pa.Array) -> _Array:
    if chunk.null_count:
        values = values.copy()
        values[~_valid(chunk)] = "NaT"
    return values


def _with_none(values: _Array, chunk: pa.Array) -> _Array:
    if chunk.null_count:
        values[~_valid(chunk)] = None
    return values


def _texts(chunk: pa.Array, is_text: bool, offset_type: Any) -> _Array:
    _, places, data = chunk.buffers()
    offsets = np.frombuffer(places, offset_type, chunk.offset + len(chunk) + 1)[chunk.offset :]
    begin, end = int(offsets[0]), int(offsets[-1])
    raw = bytes(memoryview(data)[begin:end]) if data is not None else b""
    bounds = pairwise((offsets - begin).tolist())
    values: _Array = np.empty(len(chunk), object)
    if not is_text:
        values[:] = [raw[a:b] for a, b in bounds]
    elif raw.isascii():
        text = raw.decode("ascii")
        values[:] = [text[a:b] for a, b in bounds]
    else:
        values[:] = [raw[a:b].decode() for a, b in bounds]
    return _with_none(values, chunk)
