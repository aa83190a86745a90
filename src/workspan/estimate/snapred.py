"""The JSON document of a timing file, and the names of such files.

The format is a superset of the one that SNAPRed keeps, so that both read both: our own fields stand only at the top, in
a step, in a measurement or in an estimate, where SNAPRed ignores what it does not know. What a document has and we do
not know is kept and written again.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from workspan.estimate.keys import Key, as_key, writable
from workspan.estimate.measurements import Measurement, StepHistory, in_order, merge, usable

__all__ = ["FORMAT", "VERSION", "NewerVersionError", "decode", "encode", "file_name", "stamp_of", "to_json"]

FORMAT = "workspan-timing"
VERSION = 1
_ORDERS = ("O_0", "O_LOG_N", "O_N", "O_N_LOG_N", "O_N_2", "O_N_3")
_NAME = re.compile(r"execution_timing_(?P<stamp>.+?)(?:(?<=Z)-[0-9a-f]{6})?\.json")
_LARGEST_DEGREE = 5


class NewerVersionError(ValueError):
    """The document was written by a later version, and must not be written over."""


# -- names ------------------------------------------------------------------------------------------------------------


def file_name(now: datetime) -> str:
    """Return a new name for a file of that moment; no two are equal."""
    return f"execution_timing_{now.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(3)}.json"


def stamp_of(name: str) -> datetime | None:
    """Return the moment in the name of a file, in UTC; ``None`` if it is not a timing file. No zone is local time.

    Examples
    --------
    >>> stamp_of("execution_timing_2025-03-04T12:00:00+02:00.json").isoformat()
    '2025-03-04T10:00:00+00:00'
    >>> stamp_of("notes.json")
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    try:
        return datetime.fromisoformat(match["stamp"]).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None


# -- reading ----------------------------------------------------------------------------------------------------------


def decode(data: bytes, *, stamp: float | None = None) -> tuple[list[StepHistory], list[str]]:
    """Read a document; return its steps, and what was left out because it makes no sense.

    Parameters
    ----------
    data
        The whole file.
    stamp
        When it was written, in seconds since 1970: the time of measurements that have none.

    Raises
    ------
    ValueError
        It is not such a document.
    NewerVersionError
        It is one of a later version.
    """
    try:
        document: Any = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:  # the standard one also reads NaN, which others write
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("steps"), list):
        raise ValueError("it has no list of steps")
    version = document.get("version")
    if document.get("format") == FORMAT and isinstance(version, int) and version > VERSION:
        raise NewerVersionError(f"it has format version {version}, and this Workspan knows {VERSION}")
    steps: dict[Key, StepHistory] = {}
    problems: list[str] = []
    for number, item in enumerate(document["steps"]):
        try:
            step = _step(item, problems, stamp)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            problems.append(f"step {number}: {type(error).__name__}: {error}")
            continue
        if (other := steps.setdefault(step.key, step)) is not step:  # nothing that we write, but nothing lost either
            merge(other, step, sys.maxsize)
    return list(steps.values()), problems


def _step(item: Any, problems: list[str], stamp: float | None) -> StepHistory:
    details = item["details"]
    parts = details["key"]
    if not isinstance(parts, list) or not 2 <= len(parts) <= 3:
        raise ValueError(f"its key is {str(parts)[:80]}")
    if not all(part is None or isinstance(part, str) for part in parts):
        raise ValueError("a part of its key is not text")
    key = as_key(parts)
    step = StepHistory(
        key,
        order=_text(item.get("order")) or _text(details.get("order")),
        n_ref_hash=_text(details.get("N_ref_hash")),
        fingerprint=_text(item.get("fingerprint")),
        accepted=[text for text in item.get("accepted") or [] if isinstance(text, str)],
        discarded=usable(item.get("discarded")),
        dropped=_moments(item.get("dropped")),
        used=usable(item.get("used")) or stamp or 0.0,
        extra={name: value for name, value in item.items() if name not in _STEP_FIELDS},
    )
    if step.fingerprint is not None:
        step.n_ref_hash = _text(item.get("imported_N_ref_hash"))
    for variant, measurement in _measurements(key, item["measurements"], problems, stamp):
        step.variant(variant).measurements.append(measurement)
    step.variant(None).estimate = _estimate(item.get("estimate"))
    estimates = item.get("variants")
    for variant, estimate in estimates.items() if isinstance(estimates, dict) else ():
        step.variant(variant).estimate = _estimate(estimate)
    totals = item.get("totals")
    for series in step.series.values():
        series.measurements = in_order(series.measurements)
        known = usable(totals.get(series.variant or "")) if isinstance(totals, dict) else None
        series.total = max(int(known or 0), len(series.measurements))
    return step


_STEP_FIELDS = {
    "details", "measurements", "estimate", "order", "fingerprint", "accepted", "discarded", "dropped", "used",
    "variants", "totals", "imported_N_ref_hash",
}  # fmt: skip
_MEASUREMENT_FIELDS = {
    "dt", "dt_est", "N_ref", "id", "start", "n_ref_fp", "overlap", "substep", "variant", "software",
}  # fmt: skip


def _measurements(
    key: Key, items: Any, problems: list[str], stamp: float | None
) -> Iterator[tuple[str | None, Measurement]]:
    if not isinstance(items, list):
        raise TypeError("its measurements are not a list")
    occurrences: dict[tuple[Any, ...], int] = {}
    left_out = 0
    for item in items:
        dt = usable(item.get("dt")) if isinstance(item, dict) else None
        if dt is None:
            left_out += 1
            continue
        n_ref, dt_est = usable(item.get("N_ref")), usable(item.get("dt_est"))
        if n_ref is None and isinstance(item.get("N_ref"), (int, float)) and item["N_ref"] == item["N_ref"]:
            left_out += 1  # negative or infinite: neither a size nor "none"
            continue
        name = _text(item.get("id"))
        if name is None:
            triple = (dt, dt_est, n_ref)
            occurrences[triple] = occurrences.get(triple, 0) + 1
            digest = hashlib.sha256(repr((*key, *triple)).encode("utf-8", "surrogatepass")).hexdigest()[:16]
            name = f"{digest}-{occurrences[triple]}"
        overlap = item.get("overlap")
        yield (
            _text(item.get("variant")),
            Measurement(
                dt,
                n_ref,
                dt_est,
                name,
                _moment(item.get("start")) or stamp,
                _text(item.get("n_ref_fp")),
                overlap if isinstance(overlap, int) and overlap > 0 else 1,
                item.get("substep") is True,
                _text(item.get("software")),
                {field: value for field, value in item.items() if field not in _MEASUREMENT_FIELDS},
            ),
        )
    if left_out:
        problems.append(f"step {key}: {left_out} measurements without a time or with an impossible size")


def _estimate(item: Any) -> dict[str, Any] | None:
    """Return a stored estimate if it can be one."""
    try:
        knots, coefficients, degree = item["tck"]
        fine = (
            isinstance(degree, int)
            and 0 <= degree <= _LARGEST_DEGREE
            and all(isinstance(number, (int, float)) and math.isfinite(number) for number in (*knots, *coefficients))
            and len(knots) >= 2
            and len(coefficients) >= 1
            and sorted(knots) == knots
            and len(coefficients) >= len(knots) - degree - 1
        )
    except (TypeError, ValueError, KeyError, OverflowError):
        return None
    return dict(item) if fine else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _moments(value: Any) -> dict[str, float]:
    """Return the usable times of a table of such."""
    items = value.items() if isinstance(value, dict) else ()
    return {name: at for name, found in items if (at := usable(found)) is not None}


def _moment(value: Any) -> float | None:
    """Return seconds since 1970 of an ISO time or of a number."""
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).astimezone(UTC).timestamp()
        except (ValueError, OverflowError, OSError):
            return None
    return usable(value)


# -- writing ----------------------------------------------------------------------------------------------------------


def encode(steps: Iterable[StepHistory]) -> bytes:
    """Write a document; nothing in it is NaN or infinite."""
    document = {"format": FORMAT, "version": VERSION, "steps": [_step_item(step) for step in steps]}
    return msgspec.json.format(to_json(_finite(document)), indent=1) + b"\n"


def to_json(value: Any) -> bytes:
    """Encode as JSON; halves of surrogate pairs, which no file can hold, as escape sequences."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_writable(value))


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return writable(value)
    if isinstance(value, dict):
        return {_writable(name): _writable(inner) for name, inner in value.items()}
    return [_writable(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _step_item(step: StepHistory) -> dict[str, Any]:
    own_hash = None if step.fingerprint is None else step.fingerprint.rpartition(":")[2]
    item: dict[str, Any] = {
        **step.extra,
        "details": {
            "key": list(step.key),
            "N_ref_hash": own_hash or step.n_ref_hash,
            "order": step.order if step.order in _ORDERS else None,
        },
        "measurements": [
            _measurement_item(measurement, series.variant)
            for series in step.series.values()
            for measurement in series.measurements
        ],
        "used": step.used,
        "totals": {series.variant or "": series.total for series in step.series.values()},
    }
    optional = {
        "order": step.order if step.order not in _ORDERS else None,
        "fingerprint": step.fingerprint,
        "accepted": step.accepted,
        "discarded": step.discarded,
        "dropped": step.dropped,
        "imported_N_ref_hash": step.n_ref_hash if own_hash else None,
        "estimate": step.series[None].estimate if None in step.series else None,
        "variants": {v: s.estimate for v, s in step.series.items() if v is not None and s.estimate is not None},
    }
    return item | {name: value for name, value in optional.items() if value}


def _measurement_item(measurement: Measurement, variant: str | None) -> dict[str, Any]:
    start = measurement.start
    item: dict[str, Any] = {
        **measurement.extra,
        "dt": measurement.dt,
        "dt_est": measurement.dt_est,
        "N_ref": measurement.N_ref,
        "id": measurement.id,
        "start": None if start is None else datetime.fromtimestamp(start, UTC).isoformat(timespec="microseconds"),
        "n_ref_fp": measurement.fingerprint,
        "overlap": measurement.overlap,
        "substep": measurement.substep,
    }
    return item | {k: v for k, v in (("variant", variant), ("software", measurement.software)) if v is not None}


def _finite(value: Any) -> Any:
    """Replace what JSON has no number for: it can only come from fields that are not ours."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value
