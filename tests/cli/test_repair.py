"""``workspan repair``."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.repairs import files
from workspan.cli import main
from workspan.grid import Layout
from workspan.measure.profile import BlockStats
from workspan.store.tracking import TrackingStore

ROW = Layout((0,), (100,), (0,), (10,), (0,), (10,), "valid", False)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of ten blocks, four of them done."""
    path = tmp_path / "tracking" / "seg"
    with TrackingStore.open(path, ROW, resource_tracking=True) as opened:
        for index in range(4):
            opened.record_done(index, BlockStats(0.5), 0, 1000.0, 1001.0)
    return path


@pytest.fixture
def broken(store: Path) -> Path:
    """The same with one garbage flag, and without the measurements of blocks 2 and 3."""
    flags = bytearray((store / "done" / "c" / "0").read_bytes())
    flags[0] = 7
    (store / "done" / "c" / "0").write_bytes(flags)
    os.truncate(store / "wall_seconds" / "c" / "0", 8)
    return store


def done(path: Path) -> list[int]:
    with TrackingStore.open(path, ROW, resource_tracking=True) as opened:
        return opened.done.tolist()


def test_a_whole_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to repair is a success, without a question and without a change (D39)."""
    before = files(store.parent)
    assert main(["repair", str(store)]) == 0
    assert capsys.readouterr() == (f"{store}: nothing to repair\n", "")
    assert files(store.parent) == before


def test_a_broken_store(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --yes it says array by array what is broken and what was reset, then mends it (D39, R28)."""
    assert main(["repair", str(broken), "--yes"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[:5] == [
        f"{broken}: this is broken, and a repair does:",
        "  wall_seconds   its chunk had 8 bytes, not 40: filled with 0",
        "  done           1 cells were neither 0 nor 1: reset to not done",
        "  done           2 cells were done, but some of their measurements were lost: reset to not done",
        "  3 cells of 'done' would be reset: those blocks run again",
    ]
    assert lines[5].startswith(f"Repaired; the changed files as they were are in {broken}.repair-")
    assert (len(lines), err) == (6, "")
    assert done(broken) == [0, 1] + [0] * 8
    assert main(["repair", str(broken)]) == 0


def test_nobody_to_ask(broken: Path) -> None:
    """Off a terminal it needs --yes: exit code 2, the plan is told, nothing is changed (D39, R72)."""
    before = files(broken.parent)
    ended = subprocess.run(
        [sys.executable, "-m", "workspan", "repair", str(broken)],
        check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (
        2,
        "workspan: nothing was changed, since there is no terminal to ask at: to repair, pass --yes\n",
    )
    assert "3 cells of 'done' would be reset" in ended.stdout
    assert files(broken.parent) == before


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("YES", 0), ("n", 2), ("", 2), ("yikes", 2)])
def test_it_asks_at_a_terminal(broken: Path, answer: str, code: int) -> None:
    """At a terminal it asks, and only yes means yes; whoever declines keeps the store as it is."""
    before = files(broken.parent)
    outer, inner = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "workspan", "repair", str(broken)], stdin=inner, stdout=inner, stderr=subprocess.PIPE
    ) as process:
        os.close(inner)
        told = b""
        while b"[y/N]" not in told:
            told += os.read(outer, 1000)
        os.write(outer, answer.encode() + b"\n")
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(outer)
    assert process.returncode == code
    if code:
        assert files(broken.parent) == before
    else:
        assert done(broken) == [0, 1] + [0] * 8


@pytest.mark.parametrize(
    ("prepare", "code", "told"),
    [
        (lambda path: (path / "zarr.json").unlink(), 3, "zarr.json does not tell which layout it was made for"),
        (lambda path: path.rename(path.with_name("moved")), 2, "there is no tracking store at "),
    ],
    ids=["unrepairable", "none"],
)
def test_what_cannot_be_repaired(broken: Path, capsys: pytest.CaptureFixture[str], prepare, code, told) -> None:
    """A store beyond repair is 3, a path without one is 2; one line says why, and nothing is changed (D39)."""
    prepare(broken)
    before = files(broken.parent)
    assert main(["repair", str(broken), "--yes"]) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert told in err
    assert files(broken.parent) == before


def test_a_store_in_use(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A store that a run writes to is not touched: exit code 3 (D39, R30)."""
    with TrackingStore.open(store, ROW, resource_tracking=True):
        assert main(["repair", str(store), "--yes"]) == 3
    assert "pid" in capsys.readouterr().err


def test_a_folder_of_stores(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that holds stores is not taken for a broken one: they are named (R50)."""
    (store.parent / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    assert main(["repair", str(store.parent)]) == 2
    assert f"is no tracking store, but holds some: name one of {store}" in capsys.readouterr().err
    (store.parent.parent / "other").mkdir()
    assert main(["repair", str(store.parent.parent / "other")]) == 2
    assert "other' is no tracking store: name the folder of one" in capsys.readouterr().err
