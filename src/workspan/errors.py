"""Every error a user can meet.

One base class, :class:`WorkspanError`, so that a caller can catch all of them; each class is also the builtin that a
caller would catch anyway. All of them survive pickling: ``args`` equals the constructor's arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "AbandonedError",
    "BlockNotFoundError",
    "ConfigurationError",
    "DataError",
    "EngineError",
    "InvalidMetadataError",
    "LayoutMismatchError",
    "MapError",
    "MissingExtraError",
    "NoStoreError",
    "NotInReportError",
    "StalledError",
    "StoreFullError",
    "StoreLockedError",
    "TrackingError",
    "UsageError",
    "UsageTypeError",
    "WireError",
    "WorkspanError",
]


class WorkspanError(Exception):
    """Base of every error that Workspan raises on purpose.

    Attributes
    ----------
    run_report
        What the run had done when it ended, or ``None`` outside a run.
    task_states
        Task id -> ``TaskState`` at that moment, or ``None``.
    task_order
        Task ids in display order, or ``None``.
    """

    run_report: object | None = None
    task_states: Mapping[str, object] | None = None
    task_order: Sequence[str] | None = None


class ConfigurationError(WorkspanError, RuntimeError, ValueError):
    """What was asked for cannot be run: the caller's arguments contradict each other or the machine."""


class UsageError(WorkspanError, RuntimeError):
    """A timed step is declared or used in a way that cannot mean anything; told where it is declared, if possible."""


class UsageTypeError(WorkspanError, TypeError):
    """An argument has a type that cannot be used."""


class TrackingError(ConfigurationError):
    """A tracking store cannot be used for this task."""


class LayoutMismatchError(TrackingError):
    """The store was made for another layout of the same task; nothing was changed."""


class InvalidMetadataError(TrackingError):
    """The store is damaged, or is not a tracking store; nothing was changed."""


class StoreLockedError(WorkspanError, RuntimeError):
    """Another run holds the store."""


class StoreFullError(WorkspanError, OSError):
    """The disk refused a write; what was recorded before is intact and the run can be resumed."""


class NoStoreError(WorkspanError, LookupError):
    """A question about single blocks was asked of a task that has no tracking store."""


class BlockNotFoundError(WorkspanError, IndexError):
    """A coordinate outside the tracking grid."""


class NotInReportError(WorkspanError, KeyError):
    """A report was asked for a task or a worker that its run did not have."""

    # A KeyError's own text is the repr of its argument.
    __str__ = Exception.__str__


class AbandonedError(WorkspanError, RuntimeError):
    """A task was given up: it had work, no live worker, and no start left in its budget."""


class StalledError(WorkspanError, RuntimeError):
    """Blocks are unfinished, yet none is ready or in flight: an internal fault, never a user's."""


class EngineError(WorkspanError, RuntimeError):
    """An engine cannot do what it was asked, for example because a function cannot be sent to a worker."""


class DataError(WorkspanError, ValueError):
    """Data is not what an operator can take: a column is missing, types do not go together, a file is damaged."""


class MapError(WorkspanError, RuntimeError):
    """A function of a dataset raised in a worker process; what is raised is also an instance of its builtin type.

    Parameters
    ----------
    type_name
        Name of the type of the exception.
    text
        Its text, operator and block included.
    told
        Its traceback, as text.
    """

    def __init__(self, type_name: str, text: str, told: str = "") -> None:
        super().__init__(type_name, text, told)
        self.type_name = type_name
        self.text = text
        self.traceback_text = told

    def __str__(self) -> str:
        return f"{self.type_name}: {self.text}" + (f"\n\n{self.traceback_text}" if self.traceback_text else "")


class WireError(WorkspanError, ConnectionError):
    """A peer sent something that is not a valid message; its connection is closed."""


class MissingExtraError(WorkspanError, ImportError):
    """An optional dependency is needed; the text names the extra and the install command."""
