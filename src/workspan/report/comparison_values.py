"""What a comparison of two runs holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workspan.errors import NotInReportError
from workspan.report._value import Value
from workspan.report.comparison_figures import STEPS

if TYPE_CHECKING:
    from typing import Any

__all__ = ["Comparison", "Row", "Side"]

_VERDICTS = ("same", "more", "less", "unclear")


@dataclass(frozen=True, slots=True)
class Side(Value):
    """A figure of the blocks of one run, in seconds or bytes."""

    n: int
    """Blocks that were compared."""
    mean: float
    p10: float | None = None
    """This and the next two: percentiles over blocks; ``None``: only a summary is left."""
    p50: float | None = None
    p90: float | None = None


@dataclass(frozen=True, slots=True)
class Row(Value):
    """One figure of one task in both runs."""

    task: str
    metric: str
    """``"wall"``, ``"cpu"``, ``"memory"`` (peak RSS), ``"io read"``, ``"io write"``, ``"overhead"``, ``"round trip"``,
    or ``"steps/"`` and the name of a step."""
    unit: str
    """``"s"`` or ``"B"``, a block."""
    a: Side
    b: Side
    change: float | None
    """Mean of *b* over mean of *a*, less 1; ``None``: *a* is 0."""
    low: float | None
    """The true change lies between this and :attr:`high`; ``None``: the spread is not known."""
    high: float | None
    verdict: str
    """``"more"`` or ``"less"``: it differs by more than the smallest change that matters. ``"same"``: no difference was
    found, and there is none of more than the limit, or of 10 % if none was given. ``"unclear"``: there might be."""
    regression: bool
    """There is more of it, and by more than the caller allows."""
    method: str
    """``"pairs"``: block by block. ``"blocks"``: two samples of blocks. ``"summaries"``: means and deviations."""

    @property
    def step(self) -> str | None:
        """Name of the step; ``None``: the metric is of the whole block."""
        return self.metric.removeprefix(STEPS) if self.metric.startswith(STEPS) else None


@dataclass(frozen=True, slots=True)
class Comparison(Value):
    """What changed from one run to another. True unless something got worse, or could not be compared.

    With *fail_over*, "worse" is a regression beyond it; without, any row that is ``"more"``.
    """

    a: str
    """What was compared, as it was named."""
    b: str
    rows: tuple[Row, ...]
    refused: dict[str, str]
    """Task -> why it could not be compared."""
    notes: dict[str, str]
    """Task -> what to know beside its figures."""
    confidence: float
    """The chance that all intervals hold together."""
    smallest: float
    """The smallest relative change that matters."""
    fail_over: float | None = None
    """Relative change from which on more is a regression; ``None``: not asked for."""

    @property
    def regressions(self) -> tuple[Row, ...]:
        """Rows that are worse by more than the caller allows."""
        return tuple(row for row in self.rows if row.regression)

    @property
    def is_comparable(self) -> bool:
        """Whether anything was compared and no task of both sides was refused."""
        return bool(self.rows) and not self.refused

    def __bool__(self) -> bool:
        worse = self.regressions if self.fail_over is not None else [r for r in self.rows if r.verdict == "more"]
        return self.is_comparable and not worse

    def row(self, task: str, metric: str) -> Row:
        """Return one row.

        Raises
        ------
        NotInReportError
            There is none.
        """
        for row in self.rows:
            if (row.task, row.metric) == (task, metric):
                return row
        known = ", ".join(repr(row.metric) for row in self.rows if row.task == task) or "none"
        raise NotInReportError(f"no row {metric!r} of task {task!r}: its rows are {known}")

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dicts, lists, numbers, text and ``None``: strict JSON."""
        return {"schema": 1, **self.to_json(), "ok": bool(self)}

    def __repr__(self) -> str:
        told = Counter(row.verdict for row in self.rows)
        counts = ", ".join(f"{told[verdict]} {verdict}" for verdict in _VERDICTS if told[verdict]) or "nothing"
        return f"<Comparison {self.a!r} with {self.b!r}: {counts}; {len(self.regressions)} regressions>"
