"""What a dataset does, as frozen values: nothing here reads, runs or imports Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workspan.dataset.functions import UserFunction
    from workspan.dataset.sinks import Sink

__all__ = [
    "BatchSize",
    "Compute",
    "Filter",
    "FilterRows",
    "Limit",
    "MapBatches",
    "MapRows",
    "Op",
    "Project",
    "Read",
    "Write",
]

BatchSize = int | Literal["auto"] | None
BatchFormat = Literal["numpy", "default", "pandas", "pyarrow"] | None


class Compute(Struct, frozen=True):
    """What an operator asks of the workers that run it."""

    concurrency: int | None = None
    """Most workers; ``None``: as many as the run has."""
    requires: tuple[tuple[str, int], ...] = ()
    """What one worker takes of the run's resources, name -> amount."""
    retries: int = 0
    """How often a task is tried again after an error of its functions."""
    retry_on: bool | tuple[str, ...] = False
    """Which errors: all, or those whose text has one of these patterns."""
    timing: Literal["phases", "stages"] | None = None
    """How finely its steps are timed; ``None``: as the dataset says."""
    block_bytes: int | None = None
    """Bytes of the blocks that leave it, or what it is fused with; ``None``: as the dataset says."""


class Op(Struct, frozen=True, kw_only=True):
    """One logical operator."""

    compute: Compute = field(default_factory=Compute)

    @property
    def name(self) -> str:
        """What it is called in plans and reports."""
        raise NotImplementedError

    @property
    def function(self) -> UserFunction | None:
        """The user's function in it."""
        return None

    @property
    def changes_rows(self) -> bool:
        """Whether it may give another number of rows than it takes."""
        return False

    @property
    def stateful(self) -> bool:
        """Whether it has an instance of a class in each worker."""
        return self.function is not None and self.function.stateful


class Read(Op, frozen=True):
    """Reads the pieces of a source."""

    source: str

    @property
    def name(self) -> str:
        """``ReadParquet`` and the like."""
        return self.source

    @property
    def changes_rows(self) -> bool:
        """Always: a piece becomes rows."""
        return True


class MapRows(Op, frozen=True):
    """A function of one row: a mapping comes back, or several from a flat map."""

    user: UserFunction
    flat: bool = False

    @property
    def name(self) -> str:
        """``Map(f)`` or ``FlatMap(f)``."""
        return f"{'FlatMap' if self.flat else 'Map'}({self.user.name})"

    @property
    def function(self) -> UserFunction | None:
        """The function."""
        return self.user

    @property
    def changes_rows(self) -> bool:
        """A flat map does."""
        return self.flat


class FilterRows(Op, frozen=True):
    """Keeps the rows for which a function is true."""

    user: UserFunction

    @property
    def name(self) -> str:
        """``Filter(f)``."""
        return f"Filter({self.user.name})"

    @property
    def function(self) -> UserFunction | None:
        """The function."""
        return self.user

    @property
    def changes_rows(self) -> bool:
        """Always."""
        return True


class Filter(Op, frozen=True):
    """Keeps the rows for which an Arrow expression is true."""

    expression: Any

    @property
    def name(self) -> str:
        """``Filter(<expression>)``."""
        return f"Filter({' '.join(str(self.expression).split())})"

    @property
    def changes_rows(self) -> bool:
        """Always."""
        return True


class MapBatches(Op, frozen=True):
    """A function of a batch of rows."""

    user: UserFunction
    batch_size: BatchSize = None
    batch_format: BatchFormat = "numpy"
    zero_copy: bool = True
    on_error: Literal["raise", "skip"] = "raise"
    max_errors: int | None = None

    @property
    def name(self) -> str:
        """``MapBatches(f)``."""
        return f"MapBatches({self.user.name})"

    @property
    def function(self) -> UserFunction | None:
        """The function."""
        return self.user

    # As its function may: but batches are filled within the task, whatever comes (D21).


class Project(Op, frozen=True):
    """Columns chosen, dropped, renamed or computed."""

    kind: Literal["Select", "Drop", "Rename", "WithColumn"]
    columns: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    """Old -> new, of a rename."""
    expression: Any = None
    """Of a computed column: an Arrow expression."""

    @property
    def name(self) -> str:
        """``Project``."""
        return "Project"

    @property
    def renames(self) -> Mapping[str, str]:
        """Old -> new name."""
        return dict(self.names)


class Limit(Op, frozen=True):
    """At most so many rows, from the first on."""

    rows: int

    @property
    def name(self) -> str:
        """``Limit(n)``."""
        return f"Limit({self.rows})"

    @property
    def changes_rows(self) -> bool:
        """Always."""
        return True


class Write(Op, frozen=True):
    """Writes all rows into files, one a task."""

    sink: Sink

    @property
    def name(self) -> str:
        """``WriteParquet`` and the like."""
        return self.sink.name
