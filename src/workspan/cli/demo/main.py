"""``workspan demo``, put together."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Literal

import msgspec

import workspan as ws
from workspan.cli import Terminated, exits
from workspan.cli.demo import folder as folders
from workspan.cli.demo.brain import find_brain
from workspan.cli.demo.nifti import read_nifti
from workspan.cli.demo.pipeline import TASKS, build
from workspan.cli.terminal import complain, say
from workspan.errors import ConfigurationError, LayoutMismatchError, StoreFullError, WorkspanError

if TYPE_CHECKING:
    from pathlib import Path

    from workspan.cli.demo.folder import Folder, Marker, Result
    from workspan.cli.demo.nifti import Volume
    from workspan.report.task import RunReport

SIGMA = 1.0
SMALLEST_BLOCK = 8
"""Edge in voxels; smaller blocks make tens of thousands of files of some bytes."""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for on the command line."""

    out: Path
    workers: int
    block: int
    engine: Literal["processes", "serial"]
    fresh: bool
    quiet: bool

    def check(self) -> None:
        """Refuse numbers that cannot work.

        Raises
        ------
        ConfigurationError
            A number is too small.
        """
        if self.workers < 1:
            raise ConfigurationError(f"--workers {self.workers} is too small: use 1 or more")
        if self.block < SMALLEST_BLOCK:
            raise ConfigurationError(f"--block {self.block} is too small: use {SMALLEST_BLOCK} or more voxels")


def run(options: Options) -> int:
    """Run the demo, or what is left of it.

    Returns
    -------
    int
        0 if every block is done, else 1.
    """
    began = perf_counter()
    options.check()
    tell = _nothing if options.quiet else say
    with folders.opened(options.out) as folder:
        marker, source = _prepared(folder, options)
        ready = perf_counter()
        tell(_opening(folder, marker, options))
        tell(f"  input  {source}, {ready - began:.1f} s")
        report = _run_blocks(folder, marker, options)
        ended = perf_counter()
        done = sum(task.blocks.skipped for task in report.tasks.values())
        count = sum(task.blocks.count for task in report.tasks.values())
        if not report:
            complain("workspan: the run is not complete; the same command goes on with what is missing")
            return exits.INCOMPLETE
        result, fresh_result = _result(folder, marker)
        for line in _closing(folder, report, result, done=done, count=count):
            tell(line)
        now = perf_counter()
        parts = f"input {ready - began:.1f} s, blocks {ended - ready:.1f} s"
        if fresh_result:
            parts += f", evaluation and picture {now - ended:.1f} s"
        tell(f"  {now - began:.1f} s in all: {parts}")
    return exits.DONE


def _prepared(folder: Folder, options: Options) -> tuple[Marker, str]:
    """Marker of a folder whose input is there, and in words where the input came from."""
    try:
        return _prepare(folder, options)
    except WorkspanError:
        raise
    except OSError as error:
        if exits.is_full(error):
            raise StoreFullError(
                f"no space is left for the input in {str(folder.path)!r}: make some, or use another --out; nothing "
                "half-written was left there"
            ) from error
        raise ConfigurationError(f"{str(folder.path)!r} cannot be prepared: {error}") from error


def _prepare(folder: Folder, options: Options) -> tuple[Marker, str]:
    # Everything that may be refused comes before the first file is written or deleted.
    if options.fresh:
        folder.made_here()
        volume = _brain()
        folder.clear()
        return _create(folder, volume, options)
    marker = folder.marker()
    if marker is not None and marker.deleting:
        folder.clear()  # somebody asked for it, and it was interrupted
        marker = None
    if marker is None or marker.input_bytes is None:  # nothing there, or ended before anything could run on it
        return _create(folder, _brain(), options)
    if (marker.block, marker.sigma) != (options.block, SIGMA):
        raise LayoutMismatchError(
            f"{str(folder.path)!r} holds a demo with --block {marker.block}, and --block {options.block} was asked "
            f"for: use --block {marker.block}, another --out, or --fresh to delete what is there"
        )
    folder.check_input(marker)
    return marker, "brain.zarr is there from before"


def _brain() -> Volume:
    files = find_brain()
    volume = read_nifti(files.t1)
    if volume.data.dtype != "uint8":
        raise ConfigurationError(f"{str(files.t1)!r} has voxels of type {volume.data.dtype}, and uint8 is expected")
    return volume


def _create(folder: Folder, volume: Volume, options: Options) -> tuple[Marker, str]:
    marker = folder.create(volume, block=options.block, sigma=SIGMA)
    z, y, x = (f"{size:g}" for size in volume.spacing)
    return marker, f"brain.zarr written, {' x '.join(map(str, marker.shape))} voxels of {z} x {y} x {x} mm (z, y, x)"


def _run_blocks(folder: Folder, marker: Marker, options: Options) -> RunReport:
    pipeline = build(folder.brain(marker), folder.tracking, workers=options.workers)
    before = ws.logging.get_log_basedir()
    ws.logging.set_log_basedir(folder.logs)
    try:
        report: RunReport = ws.run_blockwise(
            pipeline,
            engine=options.engine,
            progress=not options.quiet,
            summary=not options.quiet,
            return_report=True,
        )
    except (KeyboardInterrupt, SystemExit, Terminated):
        complain("workspan: interrupted; the same command goes on with what is missing")
        raise
    finally:
        ws.logging.set_log_basedir(before)
    return report


def _result(folder: Folder, marker: Marker) -> tuple[Result, bool]:
    """Return what came out, and whether it had to be computed."""
    written_ns = folder.newest_output(marker)
    kept = marker.result
    if kept is not None and kept.written_ns == written_ns and folder.picture.is_file():
        return kept, False
    from workspan.cli.demo.evaluate import evaluate

    result = evaluate(folder, marker, find_brain(), written_ns=written_ns)
    folder.write_marker(msgspec.structs.replace(marker, result=result))
    return result, True


def _opening(folder: Folder, marker: Marker, options: Options) -> str:
    from workspan.cli.demo.evaluate import shown

    who = f"{options.workers} worker processes" if options.engine == "processes" else "this process"
    if options.engine == "processes" and options.workers == 1:
        who = "1 worker process"
    return (
        f"Workspan demo: the MNI ICBM152 brain in blocks of {marker.block}, {len(TASKS)} tasks, {who}, "
        f"in {shown(folder.path)}"
    )


def _closing(folder: Folder, report: RunReport, result: Result, *, done: int, count: int) -> list[str]:
    from workspan.cli.demo.evaluate import as_lines, cost_of, shown

    lines = ["", "Result", "------", *as_lines(result), "", "Where it is", "-----------"]
    lines += [
        f"  arrays        {shown(folder.store)}   (OME-Zarr 0.5)",
        f"  tracking      {shown(folder.tracking)}/<task>, with runs.jsonl",
        f"  worker logs   {shown(folder.logs)}",
        f"  picture       {shown(folder.picture)}",
        "",
        "Time",
        "----",
    ]
    if done == count:
        lines.append(f"  Nothing to do: all {count:,} blocks were done before. --fresh starts anew.")
    elif done:
        lines.append(f"  {done:,} of {count:,} blocks were done before and were skipped.")
    cost = cost_of(report)
    if cost is not None:
        spent = f"importing libraries ({cost.imports:.1f} s)"
        whose = "block"
        if cost.startup:
            whose = "worker"
            spent = f"starting interpreters ({cost.startup:.1f} s) and {spent}"
        lines += [
            f"  {100 * cost.share:.0f} % of {cost.total:.1f} s of {whose} time went to {spent}.",
            "  On a volume this small the demo shows what a run costs; it says nothing about speed-up.",
        ]
    return lines


def _nothing(text: str = "") -> None:
    """Say nothing."""
