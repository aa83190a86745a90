"""One count of blocks, wherever one looks; and statistics that change nothing about a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workspan
from workspan.errors import AbandonedError, ConfigurationError, EngineError, MissingExtraError
from workspan.grid import Layout
from workspan.report.aggregate import TaskAggregate
from workspan.report.task import RunReport
from workspan.run.clock import RunClock
from workspan.run.record import RunRecord, TaskBook
from workspan.schedule.state import TaskState
from workspan.store.tracking import TrackingStore
from workspan.views.panel import render_panel

SOURCE = str(Path(next(iter(workspan.__path__))).parent)
WAYS = ["serial", "processes", "client"]

CLIENT = """
import sys
import workspan
from plan import act

client = workspan.Client()
while True:
    with client.acquire_block() as block:
        if block is None:
            break
        act(block.block_id[1], sys.argv[1], "client")
"""

PLAN = """
import os, pathlib, signal, time

def act(number, folder, way):
    here = pathlib.Path(folder)
    attempt = sum(1 for _ in here.glob(f"{number}.*"))
    (here / f"{number}.{attempt}").touch()
    if number == 1 and attempt == 0:
        raise ValueError("once")
    if number == 2:
        if not (here / "mended").exists():
            raise ValueError("until it is mended")
    if number == 4 and attempt == 0 and way != "serial":
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 7 and attempt == 0 and way == "processes":
        time.sleep(60)
"""


@pytest.fixture(autouse=True)
def logs(tmp_path: Path) -> Iterator[Path]:
    """Keep the workers' logs in the test's own folder."""
    workspan.logging.set_log_basedir(tmp_path / "logs")
    yield tmp_path / "logs"
    workspan.logging.set_log_basedir("./workspan_logs")


def line(
    count: int, function: Callable[..., object] | None, *, conflict: bool = False, **rules: object
) -> workspan.Task:
    """A task over *count* blocks of ten on a line."""
    margin = 5 * conflict
    total = workspan.Roi((-margin,), (count * 10 + 2 * margin,))
    read, write = workspan.Roi((-margin,), (10 + 2 * margin,)), workspan.Roi((0,), (10,))
    return workspan.Task("t", total, read, write, function, read_write_conflict=conflict, **rules)


def run(task: workspan.Task, engine: str = "serial", **how: object) -> RunReport:
    """Run *task* and return the report."""
    how = {"progress": False, "summary": False} | how
    return workspan.run_blockwise(task, engine=engine, return_report=True, **how)


class Watcher:
    """An observer that checks the counters at every event."""

    def __init__(self) -> None:
        self.finished = 0
        self.last: TaskState | None = None

    def look(self, states: dict[str, TaskState]) -> None:
        state = states["t"]
        parts = [state.ready_count, state.processing_count, state.completed_count, state.failed_count]
        parts += [state.orphaned_count, state.pending_count]
        assert min(parts) >= 0, state
        assert sum(parts) == state.total_block_count
        assert state.skipped_count <= state.completed_count
        over = state.completed_count + state.failed_count + state.orphaned_count
        assert over >= self.finished, "a finished block came back"
        self.finished, self.last = over, state

    on_start = on_progress = on_finish = look


@pytest.mark.parametrize("way", WAYS)
def test_there_is_one_count_of_blocks(tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture) -> None:
    """Report, scheduler, store and panel agree, under retries, a kill, a timeout, a failure and a resume (B125, KF-46).

    Serial, own processes and hand-written workers alike; failures of the store add up over runs (B122, D4).
    """
    (tmp_path / "plan.py").write_text(PLAN)
    (tmp_path / "client.py").write_text(CLIENT)
    notes = tmp_path / "notes"
    notes.mkdir()
    place, folder = str(tmp_path), str(notes)

    def block(block: workspan.Block) -> None:
        sys.path[:0] = [place]
        try:
            from plan import act
        finally:
            sys.path.remove(place)
        act(block.block_id[1], folder, way)

    def start_worker() -> None:
        subprocess.run([sys.executable, f"{place}/client.py", folder], check=True)

    def once() -> tuple[RunReport, Watcher]:
        watcher = Watcher()
        function = start_worker if way == "client" else block
        rules = {"max_workers": 2, "timeout": 1.5 if way == "processes" else None}
        task = line(10, function, tracking_path=tmp_path / "t", resource_tracking=True, **rules)
        return run(task, "serial" if way == "serial" else "processes", progress=watcher), watcher

    def check(report: RunReport, watcher: Watcher, done_before: int) -> None:
        assert "observer" not in caplog.text, caplog.text
        blocks, state = report["t"].blocks, watcher.last
        assert state is not None
        assert (blocks.count, blocks.skipped) == (state.completed_count, state.skipped_count)
        assert (blocks.failed, blocks.orphaned) == (state.failed_count, state.orphaned_count)
        done = int(TrackingStore.peek(tmp_path / "t").done.sum())
        assert blocks.count - blocks.skipped == done - done_before
        assert blocks.wall.n == blocks.cpu.n == blocks.count - blocks.skipped
        assert blocks.round_trip.n == (0 if way == "serial" else blocks.wall.n)
        if way == "client":
            assert report["t"].workers.unmanaged_clients == 0
        if way != "serial":
            assert sum(record.blocks for record in report["t"].workers.records) == blocks.count - blocks.skipped
        head = render_panel(report).splitlines()[2] if blocks.wall.n else ""
        assert head.startswith(f"t   {blocks.count} block" if blocks.wall.n else "")

    first, watcher = once()
    check(first, watcher, 0)
    lost = {"serial": 0, "processes": 2, "client": 1}[way]  # the killed worker's block, and the one over its deadline
    assert (first["t"].blocks.count, first["t"].blocks.failed) == (9, 1)
    assert first["t"].blocks.failures == 1 + 3 + lost
    (notes / "mended").touch()
    second, watcher = once()
    check(second, watcher, 9)
    assert (second["t"].blocks.count, second["t"].blocks.skipped, second["t"].blocks.failures) == (10, 9, 0)
    third, watcher = once()
    check(third, watcher, 10)
    assert (third["t"].blocks.count, third["t"].blocks.skipped) == (10, 10)
    assert int(TrackingStore.peek(tmp_path / "t").failures.sum()) == 4 + lost
    assert len(third["t"].block_records()) == 10, "one row a block, also after two resumes (KF-38)"


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_statistics_change_nothing(tmp_path: Path, engine: str) -> None:
    """Order, retries and results are the same with resource tracking, with a store alone, and without (B124)."""

    def outcome(**rules: object) -> tuple[object, ...]:
        notes = tmp_path / f"notes{len(list(tmp_path.iterdir()))}"
        notes.mkdir()

        def work(block: workspan.Block) -> None:
            number = block.block_id[1]
            attempt = sum(1 for _ in notes.glob(f"{number}.*"))
            (notes / f"{number}.{attempt}").write_text(str(time.monotonic_ns()))
            if number == 3 and attempt == 0:
                raise ValueError("once")

        task = line(9, work, conflict=True, max_workers=1, **rules)
        blocks = run(task, engine)["t"].blocks
        order = sorted(notes.iterdir(), key=lambda path: int(path.read_text()))
        return [path.name for path in order], blocks.count, blocks.failures

    plain = outcome(tracking_path=False)
    assert plain[1:] == (9, 1)
    assert outcome(tracking_path=tmp_path / "a") == plain
    assert outcome(tracking_path=tmp_path / "b", resource_tracking=True) == plain


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_measurements_need_a_folder(engine: str) -> None:
    """Tracking without a folder is refused before anything runs, and the text says where to give one (B134)."""
    task = line(1, lambda block: None, resource_tracking=True, tracking_path=False)
    with pytest.raises(ConfigurationError, match=r"task 't' has resource_tracking=True.*tracking_path=.*set_tracking_"):
        run(task, engine)


def test_a_return_without_measurements_fails_the_run() -> None:
    """Only a client that bypasses ours can do that: the error names task, block, peer and remedy (B135)."""
    layout = Layout((0,), (9,), (0,), (1,), (0,), (1,))
    aggregate = TaskAggregate(9, resource_tracking=True)
    book = TaskBook("cells", layout, TaskState("cells", total_block_count=9), True, None, aggregate)
    record = RunRecord("r", [book], RunClock(), has_workers=True, log_dir=None)
    record.blocks_skipped(0, [1, 2], "done")  # these are exempt
    with pytest.raises(EngineError, match=r"block 7 of task 'cells' came back from worker 5 .*profile_block\(block\)"):
        record.block_done(0, 7, 5, 1.0, 2.0, None, None)
    assert aggregate.blocks(orphaned=0).count == 2


class TestLines:
    """Where and when a run is written down."""

    @pytest.mark.parametrize("tracked", [False, True])
    def test_with_a_store_the_line_is_in_it(self, tmp_path: Path, logs: Path, tracked: bool) -> None:
        """A run of a task that has a store leaves its line there, measured or not, and nowhere else (B156)."""
        report = run(line(1, lambda block: None, tracking_path=tmp_path / "t", resource_tracking=tracked))
        assert [json.loads(text) for text in (tmp_path / "t" / "runs.jsonl").read_text().splitlines()] == [
            report["t"].to_json()
        ]
        assert not (logs / "t" / "runs.jsonl").exists()

    def test_without_a_store_the_line_is_beside_the_logs(self, logs: Path) -> None:
        """A task without a store, or in a run without stores, leaves its line in its log folder (B156)."""
        report = run(line(1, lambda block: None, tracking_path=False))
        assert json.loads((logs / "t" / "runs.jsonl").read_text()) == report["t"].to_json()

    def test_with_neither_it_is_kept_in_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without store and logs the report is there in this process, and nothing is written (B156, B148)."""
        monkeypatch.chdir(tmp_path)
        workspan.logging.set_log_basedir(None)
        task = line(1, lambda block: None, tracking_path=False)
        assert task.report() is None
        report = run(task)
        assert task.report() == report["t"]
        assert list(tmp_path.rglob("runs.jsonl")) == []

    def test_every_end_leaves_a_line(self, tmp_path: Path) -> None:
        """Complete, incomplete, abandoned, interrupted, an error: each appends one line that says so (B157)."""

        def fails(block: workspan.Block) -> None:
            raise ValueError("never")

        def interrupts(block: workspan.Block) -> None:
            signal.raise_signal(signal.SIGINT)

        def dies(block: workspan.Block) -> None:
            os._exit(3)

        rules = {"tracking_path": tmp_path / "t"}
        run(line(2, fails, max_retries=0, **rules))
        with pytest.raises(AbandonedError):
            run(line(2, dies, max_worker_restarts=0, max_workers=1, max_retries=5, **rules), "processes")
        with pytest.raises(KeyboardInterrupt):
            run(line(2, interrupts, **rules))
        with pytest.raises(ValueError, match="never"):
            run(line(2, fails, **rules), None, multiprocessing=False)
        run(line(2, lambda block: None, **rules))
        outcomes = [json.loads(text)["outcome"] for text in (tmp_path / "t" / "runs.jsonl").read_text().splitlines()]
        assert outcomes == ["incomplete", "abandoned", "interrupted", "error", "completed"]


@pytest.mark.parametrize("jump", [-86_400.0, 3600.0])
def test_a_clock_that_is_set_moves_no_duration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """The wall clock jumps in the middle of a block: stamps and durations follow the monotonic clock (R34, KF-40)."""
    wall, jumped = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: wall() + jumped[0])

    def work(block: workspan.Block) -> None:
        if block.block_id[1] == 1:
            jumped[0] = jump
        time.sleep(0.01)

    began = wall()
    report = run(line(3, work, tracking_path=tmp_path / "t", resource_tracking=True))["t"]
    took = wall() - began
    stamps = [stamp for window in report.timeline() for stamp in (window.sent_at, window.returned_at)]
    assert stamps == sorted(stamps)
    assert report.wall_seconds <= took + 0.02
    assert stamps[-1] - stamps[0] <= took + 0.02
    assert report.ended_at - report.started_at == pytest.approx(report.wall_seconds, abs=1e-6)


def test_a_worker_on_a_host_with_another_clock(tmp_path: Path) -> None:
    """A worker whose clocks are an hour off: its times are intervals, the stamps the driver's (R35, KF-39)."""
    script = tmp_path / "client.py"
    script.write_text(
        "import time\n"
        "wall, steady = time.time, time.monotonic\n"
        "time.time, time.monotonic = lambda: wall() + 3600, lambda: steady() - 3600\n" + CLIENT
    )
    (tmp_path / "plan.py").write_text("import time\ndef act(number, folder, way): time.sleep(0.05)\n")
    path = str(script)

    def start_worker() -> None:
        subprocess.run([sys.executable, path, "."], check=True)

    report = run(line(3, start_worker, tracking_path=tmp_path / "t", resource_tracking=True), "processes")["t"]
    assert 0.05 <= report.blocks.wall.min <= report.blocks.wall.max < 5
    for window, record in zip(report.timeline(), report.block_records(), strict=True):
        assert report.started_at <= window.sent_at <= window.returned_at <= report.ended_at
        assert window.returned_at - window.sent_at >= record.stats.wall_seconds
    # Between its two stamps a block was away; less its own time that is the overhead, and nothing else.
    away = sum(window.returned_at - window.sent_at for window in report.timeline())
    assert report.blocks.round_trip.total == pytest.approx(away, abs=1e-4)
    assert report.blocks.overhead.total == pytest.approx(away - report.blocks.wall.total, abs=1e-4)


def test_children_that_vanish_disturb_no_measurement(tmp_path: Path) -> None:
    """A block that starts fifty programs which end at once is measured like any other (KF-35)."""

    def work(block: workspan.Block) -> None:
        for _ in range(50):
            os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)

    report = run(line(2, work, tracking_path=tmp_path / "t", resource_tracking=True))["t"]
    for record in report.block_records():
        assert record.stats.wall_seconds > 0
        assert None not in (record.stats.cpu_seconds, record.stats.peak_rss_bytes, record.stats.io_read_bytes)


def test_extras_are_extra(tmp_path: Path) -> None:
    """Without any optional package a run is measured; who asks for one is told which, and how to get it (KF-45)."""
    script = tmp_path / "bare.py"
    script.write_text(
        "import sys\n"
        "for name in ('pynvml', 'pandas', 'scipy', 'skimage', 'nilearn', 'PIL', 'psutil', 'tqdm'):\n"
        "    sys.modules[name] = None\n"
        "import workspan as ws\n"
        "from workspan.errors import MissingExtraError\n"
        "roi = ws.Roi((0,), (1,))\n"
        "task = ws.Task('t', roi, roi, roi, lambda b: None, tracking_path='t', resource_tracking=True)\n"
        "report = ws.run_blockwise(task, engine='serial', progress=False, return_report=True)['t']\n"
        "assert report.blocks.wall.n == 1 and report.blocks.gpu_util is None\n"
        "try:\n"
        "    report.to_frame('pandas')\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": SOURCE},
        cwd=tmp_path,
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] == "kind='pandas' needs pandas: pip install pandas, or use kind='arrow'"
    assert issubclass(MissingExtraError, ImportError)


@pytest.mark.parametrize(
    ("content", "limit"), [("536870912\n", 536_870_912), ("max\n", None), ("what?\n", None), (None, None)]
)
def test_the_memory_limit_is_that_of_the_container(tmp_path: Path, content: str | None, limit: int | None) -> None:
    """The limit is read from the control group; without one, or if it cannot be read, there is none (KF-43)."""
    from workspan.engines.memory import MemoryWatch

    group = tmp_path / "cgroup" / "job"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("oom 0\noom_kill 2\n")
    if content is not None:
        (group / "memory.max").write_text(content)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/job\n")
    watch = MemoryWatch(tmp_path / "proc", tmp_path / "cgroup")
    assert watch.limit_bytes == limit
    assert not watch.took_one()
    (group / "memory.events").write_text("oom 1\noom_kill 3\n")
    assert (watch.took_one(), watch.took_one()) == (True, False)


def test_the_command_line_monitor_keeps_its_server() -> None:
    """daisy's monitor exists, holds its server, and does nothing else (B169)."""
    from workspan.compat.cl_monitor import CLMonitor

    server = object()
    monitor = CLMonitor(server, 1, x=2)
    assert vars(monitor) == {"server": server}
