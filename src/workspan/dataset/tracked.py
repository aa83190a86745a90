"""Whether a run may go on where another was ended.

The tracking folder has ``plan.json``: what the tasks read and do. A run that reads or does something else is refused
there. What may have changed what a function makes, and need not have, is warned of: tasks that are done keep their
results.
"""

from __future__ import annotations

import json
import pickle
import secrets
import warnings
from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any

from workspan.dataset.blocks import digest
from workspan.dataset.ops import MapBatches, Project, Write
from workspan.dataset.plan import bundled
from workspan.dataset.sources import ArrowPiece, FilePiece, MemoryPiece
from workspan.dataset.task import replace_file
from workspan.errors import ConfigurationError, LayoutMismatchError, StoreLockedError
from workspan.run.functions import function_fingerprint
from workspan.store.lock import holder_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from workspan.dataset.ops import Op
    from workspan.dataset.plan import Plan
    from workspan.dataset.sources import Piece

__all__ = ["check_free", "open_plan"]

SCHEMA = 1

_WARNED = {
    "functions": "the functions of the dataset have",
    "settings": "batch sizes, forms of batches or arguments of constructors have",
    "times": "files that the dataset reads were written anew, or have",
}
"""What need not change the rows -> how it is said that it did."""


def check_free(tracking: Path, plan: Plan) -> None:
    """Refuse to touch what another run is writing just now.

    Raises
    ------
    StoreLockedError
        There is such a run; the text says which.
    """
    for operator in plan.operators:
        holder = holder_of(tracking / operator.slug)
        if holder is not None:
            raise StoreLockedError(
                f"{str(tracking)!r} is in use by another run ({holder}): wait for it or stop it, or use another "
                "tracking_path"
            )


def open_plan(tracking: Path | None, plan: Plan, mode: str) -> str:
    """Return the id of an execution: a new one, or that of the execution in the tracking folder.

    Raises
    ------
    LayoutMismatchError
        Another plan was run there.
    """
    if tracking is None:
        return secrets.token_hex(8)
    path = tracking / "plan.json"
    here = _plain(plan, mode)
    try:
        there = json.loads(path.read_text())
    except FileNotFoundError:
        there = None
    except ValueError:
        raise ConfigurationError(f"{str(path)!r} is damaged: delete the folder to begin anew") from None
    if there is None:
        made = {"workspan": "dataset", "schema": SCHEMA, "id": secrets.token_hex(8), **here, "pieces": _pieces(plan)}
        replace_file(path, json.dumps(made, indent=1).encode())
        return str(made["id"])
    changed = [name for name, value in here.items() if there.get(name, value) != value]
    for name in changed:
        if name not in _WARNED:
            told = f"its {name} is {_short(there[name])} and not {_short(here[name])}"
            if name == "source":
                told = _difference(plan, there.get("pieces", ()))
            raise LayoutMismatchError(
                f"{str(tracking)!r} keeps another dataset's run: {told}. Use the dataset that was run there, or "
                "another tracking_path, or delete the folder"
            )
    for name in changed:
        warnings.warn(
            f"{_WARNED[name]} changed since {str(tracking)!r} was begun: tasks that were done keep their results",
            UserWarning,
            stacklevel=5,
        )
    if changed:
        replace_file(path, json.dumps({**there, **here}, indent=1).encode())
    return str(there["id"])


def _plain(plan: Plan, mode: str) -> dict[str, Any]:
    pieces = plan.source.pieces
    users = [op for operator in plan.operators for op in operator.ops if op.function is not None]
    files = [piece for piece in pieces if isinstance(piece, FilePiece)]
    tasks = map(len, bundled(pieces, plan.operators[0].batch_rows))
    return {
        "operators": [operator.name for operator in plan.operators],
        "details": [text for operator in plan.operators for op in operator.ops if (text := _details(op))],
        "source": f"{len(pieces)} pieces {_hash(chain(map(_identity, pieces), tasks))}",
        "mode": mode,
        "functions": [_fingerprint(op) for op in users],
        "settings": [_settings(op) for op in users],
        "times": _hash(piece.modified_ns for piece in files),
    }


_MOST_PIECES = 1000
"""Of which it is kept what each was, so that one that has changed can be named."""


def _pieces(plan: Plan) -> list[str]:
    return [_hash([_identity(piece)]) for piece in plan.source.pieces[:_MOST_PIECES]]


def _difference(plan: Plan, there: Sequence[str]) -> str:
    """Say what of the source is not what it was."""
    pieces = plan.source.pieces
    others = (piece for piece, was in zip(pieces, there, strict=False) if _hash([_identity(piece)]) != was)
    changed = next(others, None)
    if changed is None:
        return f"its source had other pieces than {len(pieces)} now, or they went to other tasks (see batch_size)"
    return f"{changed.label} is not what was read there: its rows, its size or the columns and options differ"


def _hash(values: Iterable[Any]) -> str:
    found = sha256()
    for value in values:
        found.update(repr(value).encode())
    return found.hexdigest()[:16]


def _identity(piece: Piece) -> tuple[Any, ...]:
    """Return what tells a piece from any other that the dataset might have had in its place."""
    content: Any = None
    if isinstance(piece, FilePiece):
        content = piece.size_bytes, [(name, _plainly(value)) for name, value in piece.options]
    elif isinstance(piece, (MemoryPiece, ArrowPiece)):
        content = [digest(table) for table in piece.read()]
    return piece.label, piece.rows, content


def _plainly(value: Any) -> Any:
    return sorted((str(key), str(kind)) for key, kind in value.items()) if isinstance(value, Mapping) else value


def _details(op: Op) -> str:
    """Return what its name does not say of what an operator without a function makes."""
    if isinstance(op, Project):
        told = _told(op.expression) if op.expression is not None else ""
        return " ".join([op.kind, *map(repr, op.columns), *(f"{a!r} to {b!r}" for a, b in op.names), told]).strip()
    if isinstance(op, Write):
        return f"{op.sink.name} {dict(op.sink.options)}"
    expression = getattr(op, "expression", None)
    return "" if expression is None else _told(expression)


def _told(expression: Any) -> str:
    """Return an expression as text; of long values its text has only the ends."""
    text = str(expression)
    return f"{text} {sha256(pickle.dumps(expression)).hexdigest()[:16]}" if "..." in text else text


def _fingerprint(op: Op) -> str:
    assert op.function is not None
    return function_fingerprint(op.function.function) or op.name


def _settings(op: Op) -> str:
    user = op.function
    assert user is not None
    bound = ""
    if user.arguments or user.keywords:
        # Arguments are compared as what a function is bound to.
        bound = function_fingerprint(_Bound(user.arguments, tuple(sorted(user.keywords.items())))) or ""
    size = f" {op.batch_size} {op.batch_format} {op.on_error}" if isinstance(op, MapBatches) else ""
    return f"{op.name}{size} {bound}".strip()


class _Bound:
    """Holds what a class is constructed with."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __call__(self) -> None:
        """Do nothing."""


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
