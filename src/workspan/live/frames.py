"""Frames: a length of 4 bytes, big-endian, and a JSON object in UTF-8. Data only: nothing here can run code.

Every object has ``v``, the version of the format, and ``kind``. Kinds that a reader does not know are passed over.
"""

from __future__ import annotations

import numbers
import reprlib
import struct
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from workspan.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HEAD_BYTES", "MAX_FRAME", "VERSION", "FrameReader", "encode"]

VERSION = 1
"""Changes when a reader of the version before would misunderstand."""
MAX_FRAME = 256 * 1024
"""Largest JSON text, in bytes. The sender cuts what is longer; a receiver ends the connection."""
HEAD_BYTES = 4

_HEAD = struct.Struct(">I")
_MAX_REPR = 200
_LIMITS = ((16 * 1024, 1000, 8), (1024, 100, 4), (128, 100, 1))
"""Most characters of a text, entries of a list or dict, and levels, from the first try at a long frame to the last."""

_repr = reprlib.Repr()
_repr.maxother = _repr.maxstring = _repr.maxlong = _MAX_REPR


def encode(record: Mapping[str, Any]) -> bytes:
    """Return *record* as a frame.

    Tuples and sets become lists, numbers that are not finite become null, and what JSON does not know becomes a short
    ``repr``. What does not fit into :data:`MAX_FRAME` is cut, and then marked by ``truncated``.
    """
    record = {"v": VERSION, **record}
    try:
        text = _encoder.encode(record)
    except Exception:  # cycles, surrogates, an object whose own conversion fails
        text = b""
    if not 0 < len(text) <= MAX_FRAME:
        text = _cut(record)
    return _HEAD.pack(len(text)) + text


def _cut(record: Mapping[str, Any]) -> bytes:
    for characters, entries, levels in _LIMITS:
        cutter = _Cutter(characters, entries)
        plain = cutter.plain(record, levels)
        if cutter.has_cut:
            plain["truncated"] = True
        text = msgspec.json.encode(plain)
        if len(text) <= MAX_FRAME:
            break
    return text


class _Cutter:
    """Turns values into plain ones of bounded size, and notes whether anything was left out."""

    def __init__(self, characters: int, entries: int) -> None:
        self._characters = characters
        self._entries = entries
        self.has_cut = False

    def plain(self, value: Any, levels: int) -> Any:
        """Return *value* in dicts, lists, texts and numbers, at most *levels* of them deep."""
        if value is None or isinstance(value, (bool, float)):
            return value
        if isinstance(value, numbers.Number):
            known = _known(value)
            return known if isinstance(known, float) or (isinstance(known, int) and abs(known) < 2**63) else str(known)
        if isinstance(value, str):
            return self._text(value)
        if levels > 0 and isinstance(value, Mapping):
            kept = islice(value.items(), self._entries)
            self.has_cut |= len(value) > self._entries
            return {self._text(str(key)): self.plain(inner, levels - 1) for key, inner in kept}
        if levels > 0 and isinstance(value, (list, tuple)):
            self.has_cut |= len(value) > self._entries
            return [self.plain(inner, levels - 1) for inner in value[: self._entries]]
        self.has_cut |= isinstance(value, (Mapping, list, tuple))
        return self._text(_known(value))

    def _text(self, text: str) -> str:
        self.has_cut |= len(text) > self._characters
        return text[: self._characters].encode("utf-8", "backslashreplace").decode("utf-8")


def _known(value: Any) -> Any:
    """Convert what JSON does not know."""
    try:
        if isinstance(value, numbers.Integral):
            return int(value)
        if isinstance(value, numbers.Real):
            return float(value)
        return _repr.repr(value)[: 2 * _MAX_REPR]
    except Exception:
        return f"<{type(value).__name__}>"


_encoder = msgspec.json.Encoder(enc_hook=_known)


class FrameReader:
    """Puts frames together from what arrives, in whatever pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Take in *data* and yield the frames that are whole now.

        Raises
        ------
        WireError
            This is not the format, or a later version of it. Frames in front of the fault have been yielded. The
            length is looked at before any memory is taken for it.
        """
        buffer = self._buffer
        buffer += data
        while len(buffer) >= HEAD_BYTES:
            (length,) = _HEAD.unpack_from(buffer)
            if not 0 < length <= MAX_FRAME:
                raise WireError(f"protocol error: a frame of {length} bytes, the limit is {MAX_FRAME}")
            if len(buffer) < HEAD_BYTES + length:
                return
            text = bytes(buffer[HEAD_BYTES : HEAD_BYTES + length])
            del buffer[: HEAD_BYTES + length]
            yield _decode(text)


def _decode(text: bytes) -> dict[str, Any]:
    try:
        frame = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"protocol error: a frame that is not JSON ({error})") from None
    if not isinstance(frame, dict):
        raise WireError(f"protocol error: a frame that is a JSON {type(frame).__name__}, not an object")
    version = frame.get("v")
    if version != VERSION or not isinstance(frame.get("kind"), str):
        raise WireError(f"protocol error: a frame of version {str(version)[:20]}, this is version {VERSION}")
    return frame
