"""The execution summary: how far every task came, what went wrong, and how to run what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan.schedule.state import TaskState
from workspan.views.format import (
    count,
    fit,
    folded,
    long_duration,
    many_lines,
    one_line,
    shorten,
    symbol,
    table,
    titled,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from workspan.report.parts import BlockFailure
    from workspan.report.task import RunReport

DEFAULT_TIMEOUT_SECONDS = 600.0

MOST_ERROR_LINES = 40
"""Lines of an error's text that are printed: the first few and the last ones."""

_FIRST_ERROR_LINES = 8

_SENTENCE = 50
"""Room for what is said of a task behind its id."""

_LEAST_NAME = 12
"""Characters of a task's id that are shown, however narrow the terminal is."""

_CAUSES = {"lost": " (its worker died)", "timeout": " (over its timeout)"}


def render_summary(
    states: Mapping[str, TaskState],
    order: Sequence[str],
    *,
    errors: Mapping[str, Sequence[BlockFailure]] | None = None,
    skips: Mapping[str, Mapping[str, int]] | None = None,
    stores: Mapping[str, str | Path | None] | None = None,
    log_dirs: Mapping[str, str | Path] | None = None,
    interrupted: bool = False,
    command: str | None = None,
    default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    encoding: str = "utf-8",
    columns: int | None = None,
) -> str:
    """Return the summary of a run as text without a final line break.

    Parameters
    ----------
    states
        Task id -> final counters.
    order
        Task ids in display order.
    errors
        Task id -> the first blocks that failed.
    skips
        Task id -> why blocks were not run (``"done"``, ``"mask"``, ``"check"``) -> how many. Tasks that are not listed
        skipped blocks because they were done before.
    stores
        Task id -> folder of its tracking store, for tasks that have one.
    log_dirs
        Task id -> folder of its log files, for tasks that wrote some.
    interrupted
        The run was ended before its end.
    command
        What to type to run the same again; ``None``: not known.
    default_timeout_seconds
        The timeout of a task that was given none.
    encoding
        Signs that this encoding lacks are spelled in ASCII.
    columns
        Width of the terminal, for which long ids of tasks are shortened in the table; ``None``: there is none.
    """
    tasks = [states[task_id] for task_id in order]
    parts = [
        ["Interrupted. What had been done by then:"] if interrupted else [],
        titled("Execution Summary", _counts(tasks, encoding, columns)),
        [part for line in _skipped(tasks, skips or {}) for part in folded(line, columns)],
        _failure(tasks, errors or {}, columns),
        _workers(tasks),
        [part for line in _timeouts(tasks, default_timeout_seconds) for part in folded(line, columns)],
        _logs(tasks, log_dirs or {}, columns),
        _remedy(tasks, stores or {}, command, columns),
    ]
    return "\n\n".join("\n".join(fit(line, encoding) for line in part) for part in parts if part)


def render_recorded(report: RunReport, *, encoding: str = "utf-8", columns: int | None = None) -> str:
    """Return the summary of a run that is over as text, as far as its report tells it: without a final line break."""
    states, skips, logs = {}, {}, {}
    for name, task in report.tasks.items():
        blocks, workers = task.blocks, task.workers
        failed = [record for record in workers.records if record.exit in ("error", "timeout")]
        states[name] = TaskState(
            task_id=name,
            started=True,
            total_block_count=blocks.total,
            completed_count=blocks.count,
            skipped_count=blocks.skipped,
            failed_count=blocks.failed,
            orphaned_count=blocks.orphaned,
            worker_start_count=workers.count,
            worker_failure_count=sum(workers.exits.get(kind, 0) for kind in ("error", "timeout")),
            first_worker_error=failed[0].text if failed else None,
        )
        skips[name] = {"skipped": blocks.skipped}
        if (log := next((failure.log for failure in task.failed_blocks if failure.log), None)) is not None:
            logs[name] = log.rpartition("/")[0]
    return render_summary(
        states,
        list(states),
        errors={name: task.failed_blocks for name, task in report.tasks.items()},
        skips=skips,
        stores={name: task.tracking_path for name, task in report.tasks.items()},
        log_dirs=logs,
        encoding=encoding,
        columns=columns,
    )


def skip_sentence(task_id: str, total: int, reasons: Mapping[str, int], *, in_flight: int = 0) -> str:
    """Say which blocks of a task need not run.

    Parameters
    ----------
    task_id
        The task.
    total
        Its blocks.
    reasons
        Why blocks are not run (``"done"``, ``"mask"``, ``"check"``) -> how many.
    in_flight
        Blocks that an earlier run had begun and not finished.

    Examples
    --------
    >>> skip_sentence("smooth", 1728, {"done": 1728})
    'smooth: 1,728 of 1,728 blocks done before, nothing to do'
    >>> skip_sentence("smooth", 1728, {"done": 1204}, in_flight=3)
    'smooth: 1,204 of 1,728 blocks done before, 3 were in flight and run again'
    """
    words = {"done": "done before", "mask": "masked", "check": "found done by the check function"}
    found = [(number, words.get(reason, reason)) for reason, number in reasons.items() if number]
    (number, word), *others = found or [(0, words["done"])]
    parts = [f"{number:,} of {count(total, 'block')} {word}", *(f"{n:,} {other}" for n, other in others)]
    if in_flight:
        parts.append(f"{in_flight:,} {'was' if in_flight == 1 else 'were'} in flight and run again")
    elif sum(reasons.values()) >= total:
        parts.append("nothing to do")
    return f"{one_line(task_id)}: {', '.join(parts)}"


def _counts(tasks: Sequence[TaskState], encoding: str, columns: int | None) -> list[str]:
    rows = [["task", "blocks", "completed", "skipped", "failed", "orphaned"]]
    for task in tasks:
        numbers = (
            task.total_block_count,
            task.completed_count,
            task.skipped_count,
            task.failed_count,
            task.orphaned_count,
        )
        rows.append([one_line(task.task_id), *(f"{n:,}" for n in numbers)])
    room = (
        None
        if columns is None
        else columns - 2 - sum(2 + max(map(len, cells)) for cells in list(zip(*rows, strict=True))[1:])
    )
    for row, task in zip(rows[1:], tasks, strict=True):
        sign = symbol(task, unfinished="…")
        name = row[0] if room is None else shorten(row[0], max(_LEAST_NAME, room - 1 - len(fit(sign, encoding))))
        row[0] = f"{name} {sign}"
    return [f"  {line}" for line in table(rows, encoding=encoding, right=range(1, 6))]


def _skipped(tasks: Sequence[TaskState], skips: Mapping[str, Mapping[str, int]]) -> list[str]:
    return [
        skip_sentence(task.task_id, task.total_block_count, skips.get(task.task_id, {"done": task.skipped_count}))
        for task in tasks
        if task.skipped_count
    ]


def _failure(
    tasks: Sequence[TaskState], errors: Mapping[str, Sequence[BlockFailure]], columns: int | None
) -> list[str]:
    """Describe the first failed block of the first task that has one, and how many others there are."""
    task = next((task for task in tasks if task.failed_count), None)
    if task is None:
        return []
    name, known = _name(task, columns), errors.get(task.task_id)
    if known:
        failure = known[0]
        cell = ", ".join(map(str, failure.cell)) + ("," if len(failure.cell) == 1 else "")
        cause = _CAUSES.get(failure.cause, "")
        lines = [
            f"{name}: block ({cell}) failed after {count(failure.attempts, 'attempt')}{cause}",
            f"  writes  {_box(failure.write_begin, failure.write_shape)}",
            f"  reads   {_box(failure.read_begin, failure.read_shape)}",
        ]
        if failure.worker is not None:
            lines.append(f"  worker  {failure.worker}" + (f", log {one_line(failure.log)}" if failure.log else ""))
        lines += _error(failure.error)
    else:
        lines = [f"{name}: {count(task.failed_count, 'block')} failed"]
    others = task.failed_count - 1 if known else 0
    if others:
        lines.append(f"  {count(others, 'more block')} of this task failed")
    waiting = sum(task.orphaned_count for task in tasks if not task.abandoned)
    if waiting:
        lines.append(f"  {count(waiting, 'block')} cannot run, since what they need is missing")
    return lines


def _box(begin: Sequence[int], shape: Sequence[int]) -> str:
    """Return a region as slices: ``[0:64, -8:72]``."""
    return "[" + ", ".join(f"{b}:{b + s}" for b, s in zip(begin, shape, strict=True)) + "]"


def _error(text: str) -> list[str]:
    lines = many_lines(text).rstrip().split("\n")
    left_out = len(lines) - MOST_ERROR_LINES
    if left_out > 0:
        last = MOST_ERROR_LINES - _FIRST_ERROR_LINES
        lines = [*lines[:_FIRST_ERROR_LINES], f"... {count(left_out, 'line')} left out ...", *lines[-last:]]
    return [f"    {line}".rstrip() for line in lines]


def _workers(tasks: Sequence[TaskState]) -> list[str]:
    """Say which tasks were given up and which lost workers; what ended the first one is told at length."""
    lines: list[str] = []
    told = False
    for task in tasks:
        name, error = one_line(task.task_id), task.first_worker_error or ""
        failed = f"{task.worker_failure_count:,} of {count(task.worker_start_count, 'worker')} failed"
        if task.abandoned:
            lines.append(
                f"{name}: abandoned, {one_line(task.abandon_reason or 'no reason given')}; "
                + (f"{failed}, " if task.worker_failure_count else "")
                + f"{task.orphaned_count:,} of {count(task.total_block_count, 'block')} orphaned"
            )
            if error and not told:
                lines += ["  the first worker that failed:", *_error(error)]
                told = True
        elif task.worker_failure_count:
            first = one_line(error.partition("\n")[0])
            lines.append(f"{name}: {failed}" + (f", the first: {first}" if first else ""))
    return lines


def _timeouts(tasks: Sequence[TaskState], default_seconds: float) -> list[str]:
    lines = []
    for task in tasks:
        if task.timeout_reclaim_count:
            seconds = task.timeout_secs
            default = " (the default)" if seconds == default_seconds else ""
            lines.append(
                f"{one_line(task.task_id)}: {count(task.timeout_reclaim_count, 'attempt')} ran over the timeout of "
                f"{long_duration(seconds)}{default}; if its blocks need longer, raise it: Task(..., timeout=seconds)"
            )
    return lines


def _name(task: TaskState, columns: int | None) -> str:
    """Return the id of a task as it begins a sentence."""
    name = one_line(task.task_id)
    return name if columns is None else shorten(name, max(_LEAST_NAME, columns - _SENTENCE))


def _logs(tasks: Sequence[TaskState], log_dirs: Mapping[str, str | Path], columns: int | None) -> list[str]:
    return [
        f"logs of {_name(task, columns)}: {one_line(str(log_dirs[task.task_id]))}"
        for task in tasks
        if task.task_id in log_dirs and (task.failed_count or task.abandoned or task.worker_failure_count)
    ]


def _remedy(
    tasks: Sequence[TaskState], stores: Mapping[str, str | Path | None], command: str | None, columns: int | None
) -> list[str]:
    """Say how to run only what is missing."""
    missing = sum(task.total_block_count - task.completed_count for task in tasks)
    if not missing:
        return []
    lines = []
    in_flight = sum(task.processing_count for task in tasks)
    if in_flight:
        lines.append(f"{count(in_flight, 'block')} in flight: neither done nor failed, to be run again")
    forgotten = [_name(task, columns) for task in tasks if task.completed_count and not stores.get(task.task_id)]
    if forgotten:
        again = f"a rerun repeats all blocks of {', '.join(forgotten)} (no tracking_path)"
    else:
        again = f"a rerun does only the {count(missing, 'missing block')}"
    return [*lines, again + (f": {one_line(command)}" if command else "")]
