"""A run as one page tells it: the report, and what stores, histories and logs add to it. Values only; views draw them.

What is missing is told with its reason and never filled in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from workspan.errors import WorkspanError
from workspan.report.page_blocks import PageBlocks, read_blocks
from workspan.report.page_past import LogTail, Past, log_tails, past_runs
from workspan.report.places import RUNS
from workspan.report.task import RunReport, TaskReport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workspan.report.page_blocks import BlockSource

__all__ = ["Bounds", "Extra", "Page", "PageTask", "Stage", "build_page", "speedup_bounds"]

ROOM_BYTES = 1_400_000
"""What the blocks of all tasks may take on the page; in text it is a third more."""

MOST_LOGS = 12
"""Workers whose logs are on the page, a task."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One operator of a dataset, over all tasks of the physical operator that it is part of."""

    name: str
    blocks: int
    rows: int
    bytes: int
    calls: int
    errored_rows: int


@dataclass(frozen=True, slots=True)
class Extra:
    """What somebody else knows of a task: where its blocks are, if not in its store, and its rows."""

    source: BlockSource | None = None
    runs: Path | None = None
    """Its ``runs.jsonl``; ``None``: beside its store."""
    stages: tuple[Stage, ...] = ()
    block_noun: str = "block"
    """What one of its blocks is called."""
    worker_noun: str = "worker"
    """What the number beside a block is of."""


@dataclass(frozen=True, slots=True)
class PageTask:
    """One task."""

    report: TaskReport
    blocks: PageBlocks | None
    absent: str
    """Why there are no :attr:`blocks`."""
    past: Past
    logs: tuple[LogTail, ...]
    extra: Extra = field(default_factory=Extra)


@dataclass(frozen=True, slots=True)
class Page:
    """A run."""

    report: RunReport
    is_whole: bool
    """Whether all tasks of the run are there."""
    tasks: tuple[PageTask, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Between which times a run with some workers would take, by its work and span alone."""

    workers: int
    least_seconds: float
    """No schedule is faster: the larger of span and work / workers."""
    most_seconds: float
    """No schedule that lets nobody idle while a block is ready is slower: (work - span) / workers + span."""


def speedup_bounds(work: float, span: float, workers: Sequence[int]) -> list[Bounds]:
    """Return the bounds of the time for several numbers of workers.

    They are those of Brent (1974) and Graham (1966), for blocks that take what they took, whoever else runs: start-up,
    disks and memory that are shared are not in them.

    Examples
    --------
    >>> speedup_bounds(100.0, 10.0, [20])
    [Bounds(workers=20, least_seconds=10.0, most_seconds=14.5)]
    """
    span = min(span, work)
    return [Bounds(p, max(span, work / p), (work - span) / p + span) for p in workers]


def build_page(
    report: RunReport | TaskReport,
    *,
    extras: Mapping[str, Extra] | None = None,
    log_folders: Sequence[Path] = (),
    room_bytes: int = ROOM_BYTES,
) -> Page:
    """Put a page together.

    Parameters
    ----------
    report
        The run, or a task of one.
    extras
        Task id -> what is known of it beside its report.
    log_folders
        Where logs of workers may be, the likeliest first. Those of failed blocks are known from the report.
    room_bytes
        What the blocks of all tasks may take together, before they are spelled in text.
    """
    run = report if isinstance(report, RunReport) else _run_of(report)
    places = [task.place for task in run.tasks.values() if task.place is not None]
    room = _shares([task.blocks.total for task in run.tasks.values()], room_bytes)
    tasks = [
        _task(task, (extras or {}).get(task.task_id, Extra()), log_folders, share)
        for task, share in zip(run.tasks.values(), room, strict=True)
    ]
    whole = all(place.tasks == len(tasks) for place in places)
    return Page(run, whole, tuple(tasks))


def _run_of(task: TaskReport) -> RunReport:
    return RunReport(
        run_id=task.run_id,
        started_at=task.started_at,
        ended_at=task.ended_at,
        wall_seconds=task.wall_seconds,
        outcome=task.outcome,
        tasks={task.task_id: task},
        span_seconds=task.span_seconds,
    )


def _shares(blocks: Sequence[int], room: int) -> list[int]:
    """Share *room* out: a task that needs little leaves its rest to those that need more."""
    out = [0] * len(blocks)
    left = room
    for rank, number in enumerate(sorted(range(len(blocks)), key=lambda number: blocks[number])):
        out[number] = min(left // (len(blocks) - rank), 400 * (blocks[number] + 1))
        left -= out[number]
    return out


def _task(task: TaskReport, extra: Extra, log_folders: Sequence[Path], room: int) -> PageTask:
    blocks, absent = None, ""
    try:
        source = task.open_store() if extra.source is None else extra.source
        blocks = read_blocks(source, task.started_at, task.ended_at, room_bytes=room)
        if not task.blocks.total:
            absent = "The task has no blocks."
        elif blocks.main is None:
            absent = "The time of single blocks was not recorded: run the task with resource_tracking=True."
    except WorkspanError as error:
        absent = str(error)
    runs = extra.runs
    if runs is None and task.tracking_path is not None:
        runs = Path(task.tracking_path) / RUNS
    return PageTask(
        report=task,
        blocks=blocks,
        absent=absent,
        past=Past() if runs is None else past_runs(runs),
        logs=tuple(_logs(task, blocks, extra, log_folders)),
        extra=extra,
    )


def _logs(task: TaskReport, blocks: PageBlocks | None, extra: Extra, folders: Sequence[Path]) -> list[LogTail]:
    """Return the ends of the logs that are worth a look: of workers of failed blocks, then of the slowest ones."""
    found = [failure.worker for failure in task.failed_blocks if failure.worker is not None]
    if blocks is not None and extra.worker_noun == "worker":
        slow = blocks.slowest
        found += slow.worker[(slow.worker >= 0) & slow.here].tolist()
    workers = list(dict.fromkeys(found))[:MOST_LOGS]
    return log_tails(_folders(task, folders), task.task_id, workers, task.started_at)


def _folders(task: TaskReport, more: Sequence[Path]) -> list[Path]:
    """Return log folders: that of failed blocks, those given, and those that stand near the store."""
    known = [Path(failure.log).parent.parent for failure in task.failed_blocks if failure.log is not None]
    if task.tracking_path is not None:
        above = list(Path(task.tracking_path).parents)[:2]
        near = [folder / name for folder in above for name in ("logs", "workspan_logs")]
    else:
        near = []
    return list(dict.fromkeys([*known, *more, *near]))
