"""The report of a dataset as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workspan.dataset.stats import DatasetSummary, Figure, OperatorSummary

__all__ = ["render"]


def seconds(value: float | None) -> str:
    """Return a time: above 1 s in s, above 1 ms in ms, else in µs.

    Examples
    --------
    >>> seconds(1.5), seconds(0.0123), seconds(0.0000004)
    ('1.50 s', '12.30 ms', '0.40 µs')
    """
    if value is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if value * factor > 1:
            return f"{value * factor:.2f} {unit}"
    return f"{value * 1e6:.2f} µs"


def render(summary: DatasetSummary, *, verbose: bool = False) -> str:
    """Return one paragraph an operator, upstream first, and then that of the data set."""
    paragraphs = ["\n".join(_operator(operator)) for operator in summary.operators]
    lines = ["Dataset"]
    if summary.rows_per_second is not None:
        lines.append(f"  throughput            {summary.rows_per_second:,.0f} rows/s")
    paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def _times(label: str, figure: Figure | None) -> list[str]:
    if figure is None:
        return []
    parts = (figure.min, figure.max, figure.mean, figure.sum)
    names = ("min", "max", "mean", "total")
    told = "  ".join(f"{seconds(part):>10} {name}" for part, name in zip(parts, names, strict=True))
    return [f"  {label:<20}{told}"]


def _counts(label: str, figure: Figure | None) -> list[str]:
    if figure is None:
        return []
    return [
        f"  {label:<20}{figure.min:>10,.0f} min  {figure.max:>10,.0f} max  {figure.mean:>10,.0f} mean  "
        f"{figure.sum:>10,.0f} total"
    ]


def _operator(op: OperatorSummary) -> list[str]:
    span = "" if op.span_seconds is None else f" in {seconds(op.span_seconds)}"
    lines = [f"Operator {op.number} {op.name}: {op.tasks} tasks executed, {op.blocks} blocks produced{span}"]
    if op.skipped:
        lines.append(f"  {op.skipped} tasks were done before")
    lines += _times("wall time", op.wall)
    lines += _times("cpu time", op.cpu)
    lines += _times("transform time", op.transform)
    lines += _times("  input prep", op.input_prep)
    lines += _times("  function body", op.function_body)
    lines += _times("  output build", op.output_build)
    lines += _times("  unsplit", op.unsplit)
    lines += _times("  user functions", op.user)
    lines += _times("  built-in", op.built_in)
    for stage in op.stages:
        if stage.seconds is not None:
            lines.append(
                f"    {stage.stage} {stage.name:<30} {seconds(stage.seconds):>10} total, {stage.rows_out:,} rows out"
            )
    lines += _counts("rows per block", op.rows_per_block)
    lines += _counts("bytes per block", op.bytes_per_block)
    lines += _counts("rows per task", op.rows_per_task)
    if op.tasks_per_node is not None:
        lines.append(f"  tasks per node      {op.tasks_per_node.mean:,.0f} mean on {op.nodes} node(s)")
    rows = "" if op.rows_in is None else f"{op.rows_in:,} in, "
    rate = "" if op.rows_per_second is None else f", {op.rows_per_second:,.0f} rows/s"
    lines.append(f"  rows                {rows}{op.rows_out:,} out{rate}")
    return lines
