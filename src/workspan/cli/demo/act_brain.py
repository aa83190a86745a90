"""Act 1: a brain in blocks, four tasks that wait for each other, and what every block cost."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING, TypeGuard

import msgspec

import workspan as ws
from workspan.cli.demo.brain import find_brain
from workspan.cli.demo.nifti import read_nifti
from workspan.cli.demo.pipeline import TASKS, build
from workspan.cli.terminal import complain, say
from workspan.errors import ConfigurationError, LayoutMismatchError
from workspan.views.format import MISSING, count, duration, share, size

if TYPE_CHECKING:
    from workspan.cli.demo.folder import Folder, Marker, Result
    from workspan.cli.demo.nifti import Volume
    from workspan.cli.demo.stage import Options, Stage
    from workspan.measure.stats import Stat
    from workspan.report.task import RunReport

SIGMA = 1.0


def check(folder: Folder, options: Options) -> None:
    """Refuse a folder that cannot be gone on with.

    Raises
    ------
    LayoutMismatchError
        Its blocks are others than what is asked for.
    """
    marker = folder.marker()
    if marker is not None and marker.input_bytes is not None and (marker.block, marker.sigma) != (options.block, SIGMA):
        raise LayoutMismatchError(
            f"{str(folder.path)!r} holds a demo with --block {marker.block}, and --block {options.block} was asked "
            f"for: use --block {marker.block}, another --out, or --fresh to delete what is there"
        )


def load() -> Volume:
    """Read the brain.

    Raises
    ------
    MissingExtraError
        It is not installed.
    ConfigurationError
        It is not the one that is expected.
    """
    files = find_brain()
    volume = read_nifti(files.t1)
    if volume.data.dtype != "uint8":
        raise ConfigurationError(f"{str(files.t1)!r} has voxels of type {volume.data.dtype}, and uint8 is expected")
    return volume


def play(stage: Stage, volume: Volume | None = None) -> bool:
    """Run the four tasks, or what is left of them; return whether every block is done."""
    began = perf_counter()
    folder = stage.folder
    with stage.preparing():
        marker = folder.marker()
        is_there = marker is not None and marker.input_bytes is not None
        if marker is None or not is_there:  # nothing there, or ended before anything could run on it
            marker = folder.create(volume or load(), block=stage.options.block, sigma=SIGMA)
        else:
            folder.check_input(marker)
    ready = perf_counter()
    stage.title("brain")
    stage.tell("  The MNI ICBM152 brain: four tasks smooth it and sort it into tissue classes,")
    stage.tell("  block by block, each block as soon as those that it needs are done.")
    stage.tell("")
    stage.tell(f"  {_source(marker, is_there)}, {ready - began:.1f} s")
    report = run_tasks(stage, folder, marker)
    if not report:
        return False
    _tell_cost(stage, report)
    result = _result(folder, marker)
    from workspan.cli.demo.evaluate import as_lines

    stage.tell("")
    for line in as_lines(result):
        stage.tell(line)
    return True


def run_tasks(stage: Stage, folder: Folder, marker: Marker) -> RunReport:
    """Run what is missing in *folder*; what failed for good is printed."""
    pipeline = build(folder.brain(marker), folder.tracking, workers=stage.options.workers)
    watch = stage.watch()
    with stage.running(folder.logs):
        report: RunReport = ws.run_blockwise(
            pipeline, engine=stage.options.engine, progress=watch, summary=False, return_report=True
        )
    if not report and not stage.options.quiet:
        from workspan.views.summary import render_summary
        from workspan.views.terminal import columns_of, encoding_of

        text = render_summary(
            watch.states,
            TASKS,
            errors={task_id: task.failed_blocks for task_id, task in report.tasks.items()},
            log_dirs={task_id: folder.logs / task_id for task_id in TASKS},
            encoding=encoding_of(sys.stdout),
            columns=columns_of(sys.stdout),
        )
        say("\n" + text)
    if not report:
        complain("workspan: the run is not complete; the same command goes on with what is missing")
    return report


def _source(marker: Marker, is_there: bool) -> str:
    if is_there:
        return "brain.zarr is there from before"
    z, y, x = (f"{extent:g}" for extent in marker.spacing)
    return f"brain.zarr: {' x '.join(map(str, marker.shape))} voxels of {z} x {y} x {x} mm, blocks of {marker.block}"


def _tell_cost(stage: Stage, report: RunReport) -> None:
    """Print a line a task, and what start-up cost."""
    from workspan.cli.demo.evaluate import cost_of

    done = sum(task.blocks.skipped for task in report.tasks.values())
    total = sum(task.blocks.count for task in report.tasks.values())
    if done == total:
        stage.tell(f"  Nothing to do: all {total:,} blocks were done before. --fresh starts anew.")
        return
    if done:
        stage.tell(f"  {done:,} of {total:,} blocks were done before and were skipped.")
    rows = [["task", "blocks", "a block", "slowest", "peak memory", "read", "most time in"]]
    for task in report.tasks.values():
        blocks = task.blocks
        most = max(task.steps.items(), key=lambda step: step[1].self_seconds.total, default=None)
        rows.append(
            [
                task.task_id,
                f"{blocks.count - blocks.skipped:,}",
                duration(blocks.wall.mean) if _is_known(blocks.wall) else MISSING,
                duration(blocks.wall.max) if _is_known(blocks.wall) else MISSING,
                size(blocks.peak_rss.max) if _is_known(blocks.peak_rss) else MISSING,
                size(blocks.io_read.total) if _is_known(blocks.io_read) else MISSING,
                MISSING if most is None else f"{most[0]} {share(most[1].share)}",
            ]
        )
    stage.tell("")
    stage.tell_table(rows, right=(1, 2, 3, 4, 5))
    stage.tell("")
    stage.tell(f"  {count(total - done, 'block')} in {duration(report.wall_seconds)}: {_work(report)}.")
    cost = cost_of(report)
    if cost is not None:
        spent = f"imports {duration(cost.imports)}"
        whose = "blocks"
        if cost.startup:
            whose = "workers"
            spent = f"interpreters {duration(cost.startup)}, {spent}"
        stage.tell(f"  {100 * cost.share:.0f} % of {duration(cost.total)} in {whose} was start-up: {spent}.")
        stage.tell("  On so small a volume that says what a run costs, and nothing about speed-up.")


def _is_known(stat: Stat | None) -> TypeGuard[Stat]:
    return stat is not None and stat.n > 0


def _work(report: RunReport) -> str:
    text = f"work {duration(report.work)}, span {duration(report.span)}"
    return text if report.parallelism is None else f"{text}, parallelism {report.parallelism:.1f}"


def _result(folder: Folder, marker: Marker) -> Result:
    """Return what came out; it is computed unless that was done for the arrays as they are."""
    written_ns = folder.newest_output(marker)
    kept = marker.result
    if kept is not None and kept.written_ns == written_ns and folder.picture.is_file():
        return kept
    from workspan.cli.demo.evaluate import evaluate

    result = evaluate(folder, marker, find_brain(), written_ns=written_ns)
    folder.write_marker(msgspec.structs.replace(marker, result=result))
    return result
