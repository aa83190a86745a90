"""Messages between a driver and its workers: typed, framed, authenticated. Data only: nothing here can run code.

A frame is a head of length and sequence number (4 and 8 bytes, big-endian; the length is that of payload and MAC), a
msgpack payload and a MAC over direction, sequence number and payload. Each direction has its own key, derived from a
secret that belongs to one connection, so a frame that was changed, repeated, left out, reordered or sent back is
refused. The length is checked before any memory is taken for it, and is small until the peer has proved that it knows
the secret.

Grants to a worker process on this machine are *packets*: frames padded to one size, so that the worker reads exactly
one at a time and the driver can read back, from its own copy of the worker's end, those that the worker has not read.
Numbers may then be missing from the sequence, but never go back.

BLAKE2b with a key is a MAC by design (RFC 7693). It comes from ``_blake2`` where that exists, because ``hashlib``
loads OpenSSL, which costs a starting worker 13 ms.
"""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_args

import msgspec

from workspan.errors import WireError
from workspan.measure.notes import Note
from workspan.measure.profile import BlockStats

try:
    from _blake2 import blake2b
except ImportError:  # an interpreter without it, or with another name for it
    from hashlib import blake2b

try:
    from _operator import _compare_digest as compare_digest
except ImportError:
    from hmac import compare_digest  # type: ignore[no-redef]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VERSION = 1
"""Changes whenever a message or the framing does."""

SECRET_BYTES = 32
MAC_BYTES = 16
HEAD_BYTES = 12
PACKET_BYTES = 48
"""Size of a packet: holds the largest grant."""
MAX_FRAME = 1 << 20
"""Largest payload and MAC, in bytes."""
MAX_FIRST_FRAME = 512
"""The same for the first frame, before the peer is known."""
MAX_ERROR_BYTES = 8192

TO_WORKER = b"to worker"
TO_DRIVER = b"to driver"

# -- messages --------------------------------------------------------------------------------------------------------

Index = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e10)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Percent = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
Calls = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_ERROR_BYTES)]
Name = Annotated[str, msgspec.Meta(max_length=256)]
Ints = tuple[Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)], ...]

Stats = tuple[Seconds, Seconds | None, Bytes | None, Bytes | None, Bytes | None, Percent | None, Bytes]
"""The fields of a ``BlockStats`` in their order; a NaN travels as ``None``."""

_PLAIN: dict[str, Any] = {"array_like": True, "forbid_unknown_fields": True, "frozen": True}


class Grant(msgspec.Struct, tag=1, gc=False, **_PLAIN):
    """Driver to worker: run this block after those you hold."""

    index: Index


class Stop(msgspec.Struct, tag=2, gc=False, **_PLAIN):
    """Driver to worker: end after the blocks you hold."""


class Grid(msgspec.Struct, gc=False, **_PLAIN):
    """The fields of a ``Layout``."""

    total_begin: Ints
    total_shape: Ints
    read_begin: Ints
    read_shape: Ints
    write_begin: Ints
    write_shape: Ints
    fit: Name
    read_write_conflict: bool


class Welcome(msgspec.Struct, tag=3, gc=False, **_PLAIN):
    """Driver to client: you work for this task now; ask for blocks."""

    task_id: Name
    worker: Index
    grid: Grid
    resource_tracking: bool
    timeout: Seconds | None
    """Deadline of a block, in seconds; ``None``: none."""


class Refused(msgspec.Struct, tag=4, gc=False, **_PLAIN):
    """Driver to client: why you cannot work here. The connection ends."""

    reason: Text


class Hello(msgspec.Struct, tag=16, gc=False, **_PLAIN):
    """Worker to driver, always first: I know the secret."""

    version: Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class Started(msgspec.Struct, tag=17, gc=False, **_PLAIN):
    """Worker to driver: the user's function is loaded, send me a block."""


class Broken(msgspec.Struct, tag=18, gc=False, **_PLAIN):
    """Worker to driver, in place of ``Started``: why I cannot start."""

    error: Text


class Result(msgspec.Struct, tag=19, **_PLAIN):
    """Worker to driver: what became of a block."""

    index: Index
    ok: bool
    error: Text | None = None
    stats: Stats | None = None
    steps: dict[str, tuple[Seconds, Calls]] | None = None
    notes: list[Note] | None = None
    """Measurements of steps, made in the worker."""
    final: bool = False
    """Another attempt would fail in the same way."""


class Bye(msgspec.Struct, tag=20, gc=False, **_PLAIN):
    """Worker to driver: I hold nothing and end now, because you said ``Stop`` or my work is over."""


class Join(msgspec.Struct, tag=21, gc=False, **_PLAIN):
    """Client to driver, always first: whom I want to work for."""

    task_id: Name
    worker: Index | None
    """Number of the worker that started me; ``None``: nobody of this run did."""
    host: Name
    pid: Index
    job: Name | None = None
    """Job of a cluster that I run in, as the cluster names it."""


class Ask(msgspec.Struct, tag=22, gc=False, **_PLAIN):
    """Client to driver: give me a block."""


class Leave(msgspec.Struct, tag=23, gc=False, **_PLAIN):
    """Client to driver: I end now, and have not begun what you may have granted me meanwhile."""


ToWorker = Grant | Stop | Welcome | Refused
ToDriver = Hello | Started | Broken | Result | Bye | Join | Ask | Leave
Message = ToWorker | ToDriver


def pack_stats(stats: BlockStats) -> Stats:
    """Return *stats* as they travel."""
    wall, cpu, peak, read, write, gpu, gpu_memory = msgspec.structs.astuple(stats)
    return wall, cpu, peak, read, write, gpu if gpu == gpu else None, gpu_memory


def unpack_stats(values: Stats) -> BlockStats:
    """Return the measurement that :func:`pack_stats` packed."""
    wall, cpu, peak, read, write, gpu, gpu_memory = values
    return BlockStats(wall, cpu, peak, read, write, nan if gpu is None else gpu, gpu_memory)


def stats_fault(stats: Any) -> str | None:
    """Say what is wrong with *stats* that somebody else made; ``None`` if nothing is and they can travel."""
    if not isinstance(stats, BlockStats):
        return f"block.stats is {stats!r:.100}, not a BlockStats: use `with profile_block(block)` to measure by hand"
    for name, value, kind in zip(BlockStats.__struct_fields__, pack_stats(stats), get_args(Stats), strict=True):
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            return f"block.stats.{name} is {value!r:.100}: a measurement is a finite number, 0 or more"
    return None


# -- frames ----------------------------------------------------------------------------------------------------------

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode
_decode_to_worker: Callable[[bytes], ToWorker] = msgspec.msgpack.Decoder(ToWorker).decode
_decode_to_driver: Callable[[bytes], ToDriver] = msgspec.msgpack.Decoder(ToDriver).decode


def new_secret() -> bytes:
    """Return a fresh secret for one connection."""
    from os import urandom

    return urandom(SECRET_BYTES)


class Sealer:
    """Turns the messages of one direction of one connection into frames, in order.

    Parameters
    ----------
    secret
        The connection's secret.
    direction
        ``TO_WORKER`` or ``TO_DRIVER``.
    packets
        Pad each frame to a packet.
    """

    __slots__ = ("_limit", "_mac", "_pad", "_sequence")

    def __init__(self, secret: bytes, direction: bytes, *, packets: bool = False) -> None:
        self._mac = _keyed(secret, direction)
        self._sequence = 0
        self._pad = PACKET_BYTES if packets else 0
        self._limit = PACKET_BYTES - HEAD_BYTES if packets else MAX_FRAME

    def seal(self, message: Message) -> bytes:
        """Return the frame of *message*.

        Raises
        ------
        WireError
            The message cannot be sent: it is too large or holds text that is not Unicode. Nothing has happened; the
            next message can be sealed.
        """
        try:
            payload = _encode(message)
        except (UnicodeError, OverflowError, TypeError) as error:
            raise WireError(f"a {type(message).__name__} message cannot be encoded: {error}") from None
        size = len(payload) + MAC_BYTES
        if size > self._limit:
            raise WireError(f"a {type(message).__name__} message takes {size:,} bytes, the limit is {self._limit:,}")
        numbered = self._sequence.to_bytes(8, "big") + payload
        mac = self._mac.copy()
        mac.update(numbered)
        self._sequence += 1
        return (size.to_bytes(4, "big") + numbered + mac.digest()).ljust(self._pad, b"\0")


class Opener(Generic[T]):
    """Turns the bytes of one direction of one connection back into messages. Works on any cut of the stream.

    Parameters
    ----------
    secret, direction
        As for the peer's :class:`Sealer`.
    decode
        Turns a payload into a message of this direction, or raises.
    packets
        The frames are packets, and some may have been taken back.
    is_known
        The peer has proved that it knows the secret, so its first frame may be as large as any.
    """

    __slots__ = ("_decode", "_limit", "_mac", "_need", "_packet", "_rest", "_sequence")

    def __init__(
        self,
        secret: bytes,
        direction: bytes,
        decode: Callable[[bytes], T],
        *,
        packets: bool = False,
        is_known: bool = False,
    ) -> None:
        self._mac = _keyed(secret, direction)
        self._sequence = 0
        self._decode = decode
        self._rest = bytearray()
        self._packet = PACKET_BYTES if packets else 0
        self._need = self._packet or HEAD_BYTES
        self._limit = PACKET_BYTES - HEAD_BYTES if packets else MAX_FRAME if is_known else MAX_FIRST_FRAME

    @property
    def pending(self) -> int:
        """Bytes of a frame that has begun and is not complete."""
        return len(self._rest)

    def feed(self, data: bytes) -> Iterator[T]:
        """Yield the messages that *data* completes; run it to its end.

        Raises
        ------
        WireError
            A frame is not what the peer's sealer would have sent. Messages before it have been yielded; nothing after
            it ever is.
        """
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < self._need:
                return
            data = bytes(rest)
            rest.clear()
        at = 0
        packet = self._packet
        self._need = packet or HEAD_BYTES
        try:
            while len(data) - at >= (packet or HEAD_BYTES):
                size = int.from_bytes(data[at : at + 4], "big")
                if not MAC_BYTES < size <= self._limit:
                    raise WireError(
                        f"frame {self._sequence} claims {size:,} bytes, allowed are {MAC_BYTES + 1} to {self._limit:,}"
                    )
                begin = at + HEAD_BYTES
                end = begin + size
                if len(data) < end:
                    self._need = end - at
                    return
                mac = self._mac.copy()
                mac.update(data[at + 4 : end - MAC_BYTES])
                sequence = int.from_bytes(data[at + 4 : begin], "big")
                in_place = sequence >= self._sequence if packet else sequence == self._sequence
                if not compare_digest(mac.digest(), data[end - MAC_BYTES : end]) or not in_place:
                    raise WireError(f"frame {self._sequence} was not sent by the peer of this connection in this place")
                try:
                    message = self._decode(data[begin : end - MAC_BYTES])
                except Exception as error:  # whatever the decoder raises for wrong data
                    raise WireError(f"frame {self._sequence} is no valid message: {error}") from None
                self._sequence = sequence + 1
                if not packet:
                    self._limit = MAX_FRAME
                at = at + packet if packet else end
                yield message
        finally:
            rest += data[at:]  # a frame that was refused stays there, and is refused again


def driver_ends(secret: bytes, *, packets: bool = False, is_known: bool = False) -> tuple[Sealer, Opener[ToDriver]]:
    """Return what the driver writes and reads a connection with.

    Parameters
    ----------
    secret
        The connection's secret.
    packets
        What the driver writes can be taken back.
    is_known
        The worker has proved that it knows the secret.
    """
    opener = Opener(secret, TO_DRIVER, _decode_to_driver, is_known=is_known)
    return Sealer(secret, TO_WORKER, packets=packets), opener


def worker_ends(secret: bytes, *, packets: bool = False, is_known: bool = False) -> tuple[Sealer, Opener[ToWorker]]:
    """Return what the worker writes and reads the same connection with."""
    opener = Opener(secret, TO_WORKER, _decode_to_worker, packets=packets, is_known=is_known)
    return Sealer(secret, TO_DRIVER), opener


def _keyed(secret: bytes, direction: bytes) -> blake2b:
    if len(secret) != SECRET_BYTES:
        raise WireError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    key = blake2b(direction, key=secret, digest_size=32, person=b"workspan key").digest()
    mac = blake2b(key=key, digest_size=MAC_BYTES, person=b"workspan frame")
    mac.update(direction)
    return mac
