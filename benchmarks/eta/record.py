"""Record real runs of two workers for the replay: ``record.py FOLDER``. Takes some minutes."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runs import Recorded

import workspan as ws
from workspan.store.reader import StoreReader


def smooth(block: ws.Block) -> None:
    """Filter noise of the size of the block; the first block of a worker imports."""
    import numpy as np
    from scipy.ndimage import gaussian_filter

    shape = tuple(block.write_roi.shape)
    gaussian_filter(np.random.default_rng(block.block_id[1]).random(shape, np.float32), 3.0)


def count(block: ws.Block) -> None:
    """Do work that grows along the region, as labels or events in real data may."""
    import numpy as np

    at = int(block.write_roi.begin[0])
    rng = np.random.default_rng(at)
    np.sort(rng.random(20_000 + 3_000 * at)).cumsum()
    np.unique(rng.integers(0, 1000, 20_000 + 3_000 * at))


def sample(block: ws.Block) -> None:
    """Draw until a goal is met: nobody knows how long that takes."""
    import numpy as np

    rng = np.random.default_rng(int(block.write_roi.begin[0]))
    for _ in range(1 + int(rng.exponential(40.0))):
        rng.random(60_000).sum()


def run(
    name: str, function: Callable[[Any], None], shape: tuple[int, ...], block: tuple[int, ...], **options: Any
) -> Recorded:
    """Run it and take the times of the blocks out of its store."""
    with tempfile.TemporaryDirectory() as folder:
        zero = (0,) * len(shape)
        roi, part = ws.Roi(zero, shape), ws.Roi(zero, block)
        options = {"read_write_conflict": False, **options}
        task = ws.Task(
            name,
            roi,
            part,
            part,
            function,
            max_workers=2,
            tracking_path=folder + "/t",
            fit="shrink",
            resource_tracking=True,
            **options,
        )
        report = ws.run_blockwise(task, progress=False, summary=False, return_report=True)
        assert report
        table = StoreReader(Path(folder) / "t").table()
        values = {key: values.tolist() for key, values in table.values.items()}
        begin, layout = report.started_at, task.layout
        rows = []
        for row, cell in enumerate(table.cells.tolist()):
            index = layout.index_of_cell(tuple(cell))
            rows.append(
                (index, values["worker_id"][row], values["sent_at"][row] - begin, values["returned_at"][row] - begin)
            )
        rows.sort(key=lambda row: row[3])
        end = rows[-1][3]
        workers = []
        for record in report[name].workers.records:
            first = min(row[2] for row in rows if row[1] == record.id)
            workers.append((max(0.0, first - record.startup), first, end))
        sizes = []
        for index in range(layout.num_blocks):
            low, high = layout.write_box(index)
            size = 1.0
            for a, b, w in zip(low, high, layout.write_shape, strict=True):
                size *= (b - a) / w
            sizes.append(size)
        return Recorded(layout.num_blocks, 0, end, rows, workers, [], sizes if len(set(sizes)) > 1 else [])


def main() -> None:
    """Record each of them twice: the second one is the history of the first."""
    folder = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as home:  # runs of benchmarks are nobody's history
        ws.configure(timing={"directory": Path(home)})
        record(folder)


def record(folder: Path) -> None:
    """Record into *folder*."""
    jobs = {
        "filter": (smooth, (700, 500, 400), (128, 128, 128), {}),
        "growing": (count, (160,), (1,), {}),
        "sampling": (sample, (300,), (1,), {}),
    }
    for name, (function, shape, block, options) in jobs.items():
        for number in (1, 2):
            recorded = run(name, function, shape, block, **options)
            recorded.save(folder / f"{name}_{number}.json")
            print(name, number, len(recorded.blocks), round(recorded.ended, 1), flush=True)


if __name__ == "__main__":
    main()
