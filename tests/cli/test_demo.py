"""``workspan demo`` as a person runs it: the real brain, real processes, again, and again after a kill."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zarr
from PIL import Image

import workspan as ws
from workspan.cli.demo.brain import find_brain
from workspan.cli.demo.nifti import Volume, read_nifti
from workspan.cli.demo.pipeline import TASKS, Brain, build

ARRAYS = ("t1", "smooth", "labels/classes/0", "tables/histograms", "tables/thresholds", "tables/voxels")
BRAIN = ("demo", "--act", "brain")
BLOCKS = {"smooth": 48, "classes": 1, "classify": 48, "measure": 48}

MakeStore = Callable[..., Brain]
Unblocked = Callable[[np.ndarray, float], dict[str, np.ndarray]]
Ended = subprocess.CompletedProcess[str]


def workspan(*words: str, cwd: Path, code: str | None = None, env: dict[str, str] | None = None) -> Ended:
    """Run ``python -m workspan``, or with *code* the same command with something done to it first."""
    how = (
        ["-m", "workspan"]
        if code is None
        else ["-c", f"{code}\nfrom workspan.cli import main\nraise SystemExit(main())"]
    )
    return subprocess.run(
        [sys.executable, *how, *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
    )


def children_cpu() -> float:
    """Return the CPU seconds of all programs that have ended, and of those that they started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True)
class Demo:
    """A finished demo."""

    cwd: Path
    ended: Ended
    cpu_seconds: float

    @property
    def out(self) -> Path:
        """Its folder."""
        return self.cwd / "workspan-demo"

    def copy(self, to: Path) -> Path:
        """Copy its folder, modification times included, to below *to*."""
        return Path(shutil.copytree(self.out, to / "workspan-demo"))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """One run of the first act with all defaults, for all tests here, which do not change its folder."""
    cwd = tmp_path_factory.mktemp("demo")
    begin = children_cpu()
    ended = workspan(*BRAIN, cwd=cwd)
    return Demo(cwd, ended, children_cpu() - begin)


@pytest.fixture(scope="module")
def truth(t1: Volume, unblocked: Unblocked) -> dict[str, np.ndarray]:
    """What the whole brain gives without blocks."""
    return unblocked(t1.data, 1.0)


def files(path: Path, *but: str) -> dict[str, int]:
    """Every file below *path* with its modification time, except those whose path has one of *but* in it."""
    found = {str(entry.relative_to(path)): entry.stat().st_mtime_ns for entry in path.rglob("*") if entry.is_file()}
    return {name: stamp for name, stamp in found.items() if not any(part in name for part in but)}


def arrays(out: Path) -> dict[str, np.ndarray]:
    """Every array of the demo in *out*."""
    return {name: zarr.open_array(out / "brain.zarr" / name, mode="r")[...] for name in ARRAYS}


class TestFirstRun:
    """Default options, an empty folder, no terminal."""

    def test_succeeds_in_time(self, demo: Demo) -> None:
        """The main job ends with 0, and takes 40 s of CPU at most."""
        assert demo.ended.returncode == 0, demo.ended.stderr
        assert demo.cpu_seconds < 40, demo.cpu_seconds

    def test_equals_the_unblocked_computation(self, demo: Demo, t1: Volume, truth: dict[str, np.ndarray]) -> None:
        """On the whole brain, over processes, every voxel of every array is that of the un-blocked computation."""
        ours = arrays(demo.out)
        assert np.array_equal(ours["t1"], t1.data)
        assert np.array_equal(ours["smooth"], truth["smooth"])
        assert np.array_equal(ours["labels/classes/0"], truth["labels/classes/0"])
        assert np.array_equal(ours["tables/thresholds"], truth["thresholds"])
        assert np.array_equal(ours["tables/histograms"].reshape(-1, 256).sum(axis=0), truth["histogram"])
        assert np.array_equal(ours["tables/voxels"].reshape(-1, 4).sum(axis=0), truth["voxels"])

    def test_prints_what_the_arrays_say(self, demo: Demo) -> None:
        """Volumes and overlaps are computed from the arrays and the shipped maps, here once more in another way."""
        labels, shipped = arrays(demo.out)["labels/classes/0"].ravel(), find_brain()
        for label, name, path in ((2, "grey matter", shipped.grey), (3, "white matter", shipped.white)):
            both = np.bincount((labels == label) + 2 * (read_nifti(path).data.ravel() > 127), minlength=4)
            ours, theirs = both[1] + both[3], both[2] + both[3]
            line = (
                rf"{name} +{ours / 1000:,.1f} ml +shipped map +{theirs / 1000:,.1f} ml"
                rf" +Dice overlap {2 * both[3] / (ours + theirs):.3f}"
            )
            assert re.search(line, demo.ended.stdout), line
        assert re.search(rf"CSF +{np.count_nonzero(labels == 1) / 1000:,.1f} ml", demo.ended.stdout)

    def test_classes_are_sound(self, demo: Demo) -> None:
        """The method finds what the shipped maps show, without any tuning to them."""
        overlaps = [float(text) for text in re.findall(r"Dice overlap (0\.\d+)", demo.ended.stdout)]
        assert len(overlaps) == 2
        assert overlaps[0] > 0.88
        assert overlaps[1] > 0.91

    def test_shows_the_whole_path(self, demo: Demo) -> None:
        """What the blocks of each task cost, and where everything is, are on stdout, in 80 columns."""
        text = demo.ended.stdout
        for part in (
            "Act 1: the brain",
            "a block",
            "peak memory",
            "parallelism",
            "workspan-demo/report.html",
            "workspan-demo/brain.zarr",
            "workspan-demo/tracking",
            "workspan-demo/logs",
            "workspan-demo/slices.png",
        ):
            assert part in text, part
        for task, count in BLOCKS.items():
            cost = rf"^  {task} +{count} +[\d.]+ m?s +[\d.]+ m?s +[\d.]+ MB +[\d.]+ [KM]?B +\w+ \d+ %$"
            assert re.search(cost, text, re.MULTILINE), task
        assert max(map(len, text.splitlines())) <= 80

    def test_shows_progress_in_plain_lines(self, demo: Demo) -> None:
        """Without a terminal the progress is lines without control codes (R63)."""
        for task in TASKS:
            assert task in demo.ended.stderr
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", demo.ended.stdout + demo.ended.stderr)

    def test_says_what_start_up_cost(self, demo: Demo) -> None:
        """The share of start-up and imports is the one in the records, and no speed-up is claimed."""
        found = re.search(
            r"(\d+) % of ([\d.]+) s in workers was start-up: interpreters ([\d.]+) (m?s), imports ([\d.]+) (m?s)\.",
            demo.ended.stdout,
        )
        assert found
        share, total = map(float, found.groups()[:2])
        startup, imports = (
            float(n) / (1000 if unit == "ms" else 1) for n, unit in (found.groups()[2:4], found.groups()[4:])
        )
        records = [
            json.loads((demo.out / "tracking" / task / "runs.jsonl").read_text().splitlines()[-1]) for task in TASKS
        ]
        workers = [record["workers"] for record in records]
        lived = sum(
            w[part]["total"] for w in workers for part in ("startup", "idle", "compute", "final_wait", "teardown")
        )
        assert total == pytest.approx(lived, abs=0.051)
        assert startup == pytest.approx(sum(w["startup"]["total"] for w in workers), abs=0.051)
        assert imports == pytest.approx(sum(r["steps"]["import"]["self"]["total"] for r in records), abs=0.051)
        assert share == pytest.approx(100 * (startup + imports) / total, abs=2)
        assert "nothing about speed-up" in demo.ended.stdout

    def test_leaves_stores_logs_and_runs(self, demo: Demo) -> None:
        """Each task has a tracking store that any Zarr reader reads, its run record, and its workers' logs."""
        for task, count in BLOCKS.items():
            store = demo.out / "tracking" / task
            assert zarr.open_array(store / "done", mode="r")[...].sum() == count
            assert zarr.open_array(store / "wall_seconds", mode="r")[...].sum() > 0
            (line,) = (store / "runs.jsonl").read_text().splitlines()
            record = json.loads(line)
            assert (record["task_id"], record["outcome"], record["blocks"]["count"]) == (task, "completed", count)
            assert list((demo.out / "logs" / task).glob("worker_*.out"))
        assert sorted(entry.name for entry in demo.out.iterdir()) == [
            "brain.zarr",
            "logs",
            "report.html",
            "slices.png",
            "tracking",
            "workspan-demo.json",
        ]
        assert [entry.name for entry in demo.cwd.iterdir()] == ["workspan-demo"]

    def test_is_ome_zarr(self, demo: Demo) -> None:
        """The result is an OME-Zarr 0.5 image with a label image."""
        v05 = pytest.importorskip("ome_zarr_models.v05")
        group = zarr.open_group(demo.out / "brain.zarr", mode="r")
        v05.Image.from_zarr(group)
        v05.Labels.from_zarr(group["labels"])
        v05.ImageLabel.from_zarr(group["labels/classes"])

    def test_draws_the_result(self, demo: Demo) -> None:
        """The picture is a PNG with all four colours of the classes."""
        from workspan.cli.demo.ome import COLOURS

        with Image.open(demo.out / "slices.png") as picture:
            assert picture.format == "PNG"
            seen = {colour for _, colour in picture.getcolors(1 << 24) or ()}
        assert set(COLOURS) <= seen


class TestAgain:
    """The same command in the same folder."""

    def test_everything_is_skipped(self, demo: Demo, tmp_path: Path) -> None:
        """Nothing runs, that is said, the result is the same, and it takes less than 3 s of CPU."""
        out = demo.copy(tmp_path)
        before = files(out, "runs.jsonl")
        begin = children_cpu()
        ended = workspan(*BRAIN, cwd=tmp_path)
        seconds = children_cpu() - begin
        assert (ended.returncode, seconds < 3) == (0, True), (seconds, ended.stderr)
        assert "Nothing to do: all 145 blocks were done before" in ended.stdout
        result = re.compile(r"thresholds.*?\n\n", re.DOTALL)
        assert len(result.findall(ended.stdout)) == 1
        assert result.findall(ended.stdout) == result.findall(demo.ended.stdout)
        changed = {name for name, stamp in files(out, "runs.jsonl").items() if before.get(name) != stamp}
        assert not {name for name in changed if name.startswith(("brain.zarr", "slices"))}

    def test_nothing_heavy_is_loaded(self, demo: Demo, tmp_path: Path) -> None:
        """A run with nothing to do loads neither scipy, scikit-image nor zarr, nor the brain's files."""
        demo.copy(tmp_path)
        code = (
            "import atexit, sys\n"
            "names = ('zarr', 'scipy', 'skimage', 'PIL', 'nilearn', 'pyarrow', 'workspan.cli.demo.evaluate')\n"
            "atexit.register(lambda: print('LOADED', [n for n in names[:-1] if n in sys.modules], file=sys.stderr))"
        )
        assert workspan(*BRAIN, "--quiet", cwd=tmp_path, code=code).stderr == "LOADED []\n"

    def test_what_is_missing_runs(self, demo: Demo, tmp_path: Path) -> None:
        """Without one task's store only that task runs, and the numbers come from the arrays again."""
        out = demo.copy(tmp_path)
        shutil.rmtree(out / "tracking" / "measure")
        before = arrays(out)
        ended = workspan(*BRAIN, cwd=tmp_path)
        assert ended.returncode == 0
        assert "97 of 145 blocks were done before and were skipped" in ended.stdout
        assert all(np.array_equal(before[name], values) for name, values in arrays(out).items())

    def test_the_result_is_never_older_than_the_arrays(self, demo: Demo, tmp_path: Path) -> None:
        """A kept result is shown only while the arrays are those that it was computed from."""
        out = demo.copy(tmp_path)
        table = zarr.open_array(out / "brain.zarr" / "tables" / "voxels", mode="r+")
        table[1, 1, 1] = table[1, 1, 1] + [-1_000_000, 1_000_000, 0, 0]
        ended = workspan(*BRAIN, cwd=tmp_path)
        assert ended.returncode == 0
        assert re.search(r"CSF +1,264\.2 ml", ended.stdout)

    def test_counts_that_do_not_add_up(self, demo: Demo, tmp_path: Path) -> None:
        """Volumes are not printed from counts that miss voxels: exit code 3 (D39)."""
        out = demo.copy(tmp_path)
        table = zarr.open_array(out / "brain.zarr" / "tables" / "voxels", mode="r+")
        table[1, 1, 1] = table[1, 1, 1] - 1
        ended = workspan(*BRAIN, "--quiet", cwd=tmp_path)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (3, "", 1)
        assert f"count {189 * 233 * 197 - 4:,} voxels, and the volume has {189 * 233 * 197:,}" in ended.stderr

    def test_a_removed_picture_is_drawn_again(self, demo: Demo, tmp_path: Path) -> None:
        """The picture is the demo's to make, blocks or not."""
        out = demo.copy(tmp_path)
        (out / "slices.png").unlink()
        assert workspan(*BRAIN, "--quiet", cwd=tmp_path).returncode == 0
        assert (out / "slices.png").read_bytes() == (demo.out / "slices.png").read_bytes()

    def test_quiet(self, demo: Demo, tmp_path: Path) -> None:
        """--quiet prints nothing when all is well (R72)."""
        demo.copy(tmp_path)
        ended = workspan(*BRAIN, "--quiet", cwd=tmp_path)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


class TestRefusals:
    """A folder that does not fit: one line, nothing changed."""

    def test_another_block(self, demo: Demo, tmp_path: Path) -> None:
        """Another --block in the same folder: exit code 2, both values named, nothing touched (D39)."""
        out = demo.copy(tmp_path)
        before = files(out)
        ended = workspan(*BRAIN, "--block", "48", cwd=tmp_path)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
        assert "holds a demo with --block 64, and --block 48 was asked for" in ended.stderr
        assert files(out) == before

    def test_a_tracking_store_of_another_layout(self, demo: Demo, tmp_path: Path) -> None:
        """A store that somebody exchanged is refused by the library, with code 2, before anything runs (B115)."""
        out = demo.copy(tmp_path)
        shutil.rmtree(out / "tracking" / "smooth")
        brain = Brain("", (189, 233, 197), (48, 48, 48))
        other = build(brain, out / "tracking", workers=1).tasks[0]
        other.process_function = print_nothing
        assert other.run_blockwise(engine="serial", progress=False, summary=False)
        before = files(out)
        ended = workspan(*BRAIN, cwd=tmp_path)
        # One error, with the old and the new layout side by side.
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 6), ended.stderr
        assert "Traceback" not in ended.stderr
        assert "64" in ended.stderr
        assert "48" in ended.stderr
        assert files(out) == before

    @pytest.mark.parametrize(
        "part", ["t1/c/1/1/1", "smooth/c/0/1/0", "labels/classes/0/c/2/0/0", "tables/thresholds/c/0"]
    )
    def test_data_that_somebody_removed(self, demo: Demo, tmp_path: Path, part: str) -> None:
        """A chunk that is missing though its block is done: exit code 3 and what to do, not a plausible result."""
        out = demo.copy(tmp_path)
        (out / "brain.zarr" / part).unlink()
        ended = workspan(*BRAIN, "--quiet", cwd=tmp_path)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (3, "", 1)
        assert part.split("/c/")[0] in ended.stderr
        assert "--fresh" in ended.stderr

    def test_a_corrupt_store(self, demo: Demo, tmp_path: Path) -> None:
        """A tracking store whose flags are cut short: exit code 3 (D39, R28)."""
        out = demo.copy(tmp_path)
        flags = out / "tracking" / "smooth" / "done" / "c" / "0" / "0" / "0"
        flags.write_bytes(flags.read_bytes()[:-1])
        ended = workspan(*BRAIN, "--quiet", cwd=tmp_path)
        assert (ended.returncode, ended.stderr.count("\n")) == (3, 1), ended.stderr


def print_nothing(block: ws.Block) -> None:
    """Do nothing with a block."""


class TestOtherWays:
    """Other engines, workers, blocks, and a new start."""

    def test_serial_is_the_same(self, demo: Demo, tmp_path: Path) -> None:
        """Without processes every array is the same, and so is the result (R72 without a terminal)."""
        ended = workspan(*BRAIN, "--engine", "serial", "--out", "a/b", cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        theirs = arrays(demo.out)
        for name, values in arrays(tmp_path / "a" / "b").items():
            assert np.array_equal(values, theirs[name]), name
        assert re.search(r"\d+ % of [\d.]+ s in blocks was start-up: imports", ended.stdout)

    def test_fresh_starts_anew(
        self, demo: Demo, tmp_path: Path, small: str, small_truth: dict[str, np.ndarray]
    ) -> None:
        """--fresh takes another block size, deletes the old run and keeps what is not the demo's."""
        out = demo.copy(tmp_path)
        (out / "notes.txt").write_text("mine")
        ended = workspan(*SERIAL, "--fresh", cwd=tmp_path, code=small)
        assert ended.returncode == 0, ended.stderr
        assert "Nothing to do" not in ended.stdout
        ours = arrays(out)
        assert ours["tables/voxels"].shape == (2, 3, 2, 4)
        assert np.array_equal(ours["smooth"], small_truth["smooth"])
        assert np.array_equal(ours["labels/classes/0"], small_truth["labels/classes/0"])
        assert (out / "notes.txt").read_text() == "mine"

    def test_an_interrupted_fresh_is_finished(self, demo: Demo, tmp_path: Path, small: str) -> None:
        """A folder whose deletion was cut off is not resumed: what is left belongs to no run (KF-25)."""
        out = demo.copy(tmp_path)
        marker = json.loads((out / "workspan-demo.json").read_text())
        (out / "workspan-demo.json").write_text(json.dumps(marker | {"deleting": True}))
        ended = workspan(*SERIAL, cwd=tmp_path, code=small)
        assert ended.returncode == 0, ended.stderr
        assert "done before" not in ended.stdout
        assert arrays(out)["t1"].shape == (31, 37, 34)

    def test_odd_blocks_through_the_scheduler(
        self, tmp_path: Path, make_store: MakeStore, crop: np.ndarray, unblocked: Unblocked
    ) -> None:
        """With dependencies block by block, in the order of the scheduler, the arrays are the un-blocked ones (B28)."""
        brain, truth = make_store(crop, (16, 37, 15)), unblocked(crop, 1.0)
        pipeline = build(brain, tmp_path / "tracking", workers=1)
        report = ws.run_blockwise(pipeline, engine="serial", progress=False, summary=False, return_report=True)
        assert report
        assert [task.blocks.count for task in report.tasks.values()] == [6, 1, 6, 6]
        assert np.array_equal(brain.read("smooth"), truth["smooth"])
        assert np.array_equal(brain.read("labels/classes/0"), truth["labels/classes/0"])
        assert np.array_equal(brain.read("tables/voxels").reshape(-1, 4).sum(axis=0), truth["voxels"])


@pytest.fixture
def small(write_nifti: Callable[..., Path], crop: np.ndarray) -> str:
    """Code that puts a small piece of the brain in the place of the whole, so that a run costs its imports only."""
    file = str(write_nifti(crop.T, "small.nii.gz"))
    return (
        "from pathlib import Path\n"
        "from workspan.cli.demo import act_brain, brain\n"
        f"act_brain.find_brain = lambda: brain.BrainFiles(*[Path({file!r})] * 3)\n"
    )


@pytest.fixture
def small_truth(unblocked: Unblocked, crop: np.ndarray) -> dict[str, np.ndarray]:
    """What the small piece gives without blocks."""
    return unblocked(crop, 1.0)


KILL_IN_BLOCK = """
import os, signal
from workspan.cli.demo import pipeline
write, calls = pipeline.Brain.write, []
def dying(self, name, where, values):
    calls.append(name)
    if calls.count("labels/classes/0") == 5:
        {before}
        os.kill(os.getpid(), signal.{signal})
    write(self, name, where, values)
pipeline.Brain.write = dying
"""
HALF = "write(self, name, where, values * 0)"
WHOLE = "write(self, name, where, values)"
SERIAL = (*BRAIN, "--engine", "serial", "--block", "17")  # 2 x 3 x 2 blocks of each task but classes


class TestEndedEarly:
    """Killed, stopped, failed: the same command finishes the work."""

    @pytest.mark.parametrize("before", [HALF, WHOLE], ids=["while writing", "after writing"])
    def test_kill(self, tmp_path: Path, small: str, small_truth: dict[str, np.ndarray], before: str) -> None:
        """Killed in a block, at any moment: the block runs again, and the data are exact in the end (KF-25)."""
        code = small + KILL_IN_BLOCK.format(before=before, signal="SIGKILL")
        assert workspan(*SERIAL, cwd=tmp_path, code=code).returncode == -signal.SIGKILL
        ended = workspan(*SERIAL, cwd=tmp_path, code=small)
        assert ended.returncode == 0, ended.stderr
        done = re.search(r"(\d+) of 37 blocks were done before and were skipped", ended.stdout)
        assert done
        assert 12 + 1 + 4 <= int(done[1]) <= 12 + 1 + 4 + 4
        ours = arrays(tmp_path / "workspan-demo")
        assert np.array_equal(ours["smooth"], small_truth["smooth"])
        assert np.array_equal(ours["labels/classes/0"], small_truth["labels/classes/0"])
        assert np.array_equal(ours["tables/voxels"].reshape(-1, 4).sum(axis=0), small_truth["voxels"])

    @pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
    def test_signal(self, tmp_path: Path, small: str, name: str, code: int) -> None:
        """SIGINT and SIGTERM end the run in order, with their exit codes and no traceback (D39, R72)."""
        ended = workspan(*SERIAL, cwd=tmp_path, code=small + KILL_IN_BLOCK.format(before="pass", signal=name))
        assert ended.returncode == code
        assert "Traceback" not in ended.stderr
        assert ended.stderr.endswith("workspan: interrupted; the same command goes on with what is missing\n")
        assert not list(tmp_path.glob("workspan-demo/tracking/.workspan/*"))
        again = workspan(*SERIAL, cwd=tmp_path, code=small)
        assert again.returncode == 0, again.stderr
        assert "blocks were done before and were skipped" in again.stdout

    def test_failed_blocks(self, tmp_path: Path, small: str) -> None:
        """A block that fails for good: exit code 1, said on stderr, no result is printed; later it is done (R72)."""
        code = small + (
            "from workspan.cli.demo import pipeline\n"
            "def classes(block, *, brain): raise RuntimeError('out of luck')\n"
            "pipeline.classes = classes"
        )
        ended = workspan(*SERIAL, cwd=tmp_path, code=code)
        assert ended.returncode == 1
        assert "out of luck" in ended.stdout
        assert "Dice" not in ended.stdout
        assert ended.stderr.endswith(
            "workspan: the run is not complete; the same command goes on with what is missing\n"
        )
        again = workspan(*SERIAL, cwd=tmp_path, code=small)
        assert again.returncode == 0, again.stderr
        assert "12 of 37 blocks were done before and were skipped" in again.stdout


class TestStreams:
    """Output that nobody reads, or that cannot say everything."""

    @pytest.mark.parametrize(
        "env", [{"PYTHONIOENCODING": "ascii"}, {"TERM": "dumb"}, {"NO_COLOR": "1"}, {"COLUMNS": "20"}], ids=str
    )
    def test_any_terminal(self, demo: Demo, tmp_path: Path, env: dict[str, str]) -> None:
        """The demo ends well in any of them, without control codes (R63)."""
        demo.copy(tmp_path)
        ended = workspan(*BRAIN, cwd=tmp_path, env=env)
        assert ended.returncode == 0, ended.stderr
        assert "\x1b" not in ended.stdout + ended.stderr

    def test_reader_leaves(self, demo: Demo, tmp_path: Path) -> None:
        """`workspan demo | head -1`: the run goes on to its end without complaint (R63)."""
        out = demo.copy(tmp_path)
        shutil.rmtree(out / "tracking" / "measure")
        script = f'{sys.executable} -m workspan demo --act brain 2>stderr | head -1 >line; echo "${{PIPESTATUS[0]}}"'
        ended = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path)
        assert ended.stdout == "0\n", (tmp_path / "stderr").read_text()
        assert (tmp_path / "line").read_text().startswith("Workspan demo")
        assert "Traceback" not in (tmp_path / "stderr").read_text()
        assert zarr.open_array(out / "tracking" / "measure" / "done", mode="r")[...].sum() == 48

    def test_streams_closed(self, demo: Demo, tmp_path: Path) -> None:
        """With stdout and stderr closed the run ends well (R63)."""
        demo.copy(tmp_path)
        script = f"{sys.executable} -m workspan demo --act brain >&- 2>&-; echo $?"
        ended = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path)
        assert ended.stdout == "0\n"


class TestReport:
    """``workspan report``."""

    @pytest.mark.parametrize("path", ["workspan-demo", "workspan-demo/tracking"])
    def test_all_tasks(self, demo: Demo, path: str) -> None:
        """The panel of the whole run has each task, in their order, and the work that the demo told."""
        ended = workspan("report", path, cwd=demo.cwd)
        assert (ended.returncode, ended.stderr) == (0, "")
        shown = re.findall(r"^(\w+)   (\d+) blocks?, \d workers?", ended.stdout, re.MULTILINE)
        assert shown == [(task, str(count)) for task, count in BLOCKS.items()]
        told = re.search(r"work ([\d.]+ s), span ([\d.]+ m?s), parallelism (\d+\.\d)\.", demo.ended.stdout)
        assert told
        assert f"all 4 tasks   work {told[1]}   span {told[2]}   parallelism {told[3]}" in ended.stdout

    def test_after_a_run_that_had_nothing_to_do(self, demo: Demo, tmp_path: Path) -> None:
        """A run that skipped everything does not hide what the one before it cost."""
        demo.copy(tmp_path)
        assert workspan(*BRAIN, "--quiet", cwd=tmp_path).returncode == 0
        ended = workspan("report", "workspan-demo", cwd=tmp_path)
        assert ended.returncode == 0
        panel, note = ended.stdout.rsplit("\n\n", 1)
        assert panel == workspan("report", "workspan-demo", cwd=demo.cwd).stdout.rstrip("\n")
        assert note.startswith("The newest run found every block done before")

    def test_ascii(self, demo: Demo) -> None:
        """A terminal that knows only ASCII gets the panel in ASCII (R63)."""
        ended = workspan("report", "workspan-demo", cwd=demo.cwd, env={"PYTHONIOENCODING": "ascii"})
        assert ended.returncode == 0
        assert "+-" in ended.stdout

    def test_one_task(self, demo: Demo) -> None:
        """A single tracking folder, or its record, shows that task alone."""
        for path in ("workspan-demo/tracking/classify", "workspan-demo/tracking/classify/runs.jsonl"):
            ended = workspan("report", path, cwd=demo.cwd)
            assert ended.returncode == 0
            assert "classify   48 blocks" in ended.stdout
            assert "smooth" not in ended.stdout

    def test_tasks_of_other_runs_are_named(self, demo: Demo, tmp_path: Path) -> None:
        """Where the tasks' last runs differ, the newest one is shown and the others are named."""
        out = demo.copy(tmp_path)
        lines = out / "tracking" / "measure" / "runs.jsonl"
        record = json.loads(lines.read_text())
        lines.write_text(json.dumps(record | {"run_id": "older", "started_at": record["started_at"] - 1}) + "\n")
        ended = workspan("report", "workspan-demo", cwd=tmp_path)
        assert ended.returncode == 0
        assert "Not part of that run: measure" in ended.stdout
        assert "measure   48 blocks" not in ended.stdout
