"""The folder of a demo: refused, held, made, resumed and cleared without touching what is not the demo's."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from workspan.cli.demo import folder as folders
from workspan.cli.demo import ome
from workspan.cli.demo.folder import Folder, Marker, Result, opened
from workspan.cli.demo.nifti import Volume
from workspan.errors import ConfigurationError, InvalidMetadataError, LayoutMismatchError, StoreLockedError

VOLUME = Volume(np.arange(10**3).reshape(10, 10, 10).astype(np.uint8), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
RESULT = Result((1.0, 2.0), (1.0, 2.0, 3.0, 4.0), (5.0, 6.0), (0.5, 0.6), 7)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder in which a demo has written its input."""
    path = tmp_path / "demo"
    path.mkdir()
    made = Folder(path)
    made.create(VOLUME, block=8, sigma=1.0)
    return made


def tree(path: Path) -> dict[str, bytes | None]:
    """Everything below *path*: files with their content, folders."""
    return {str(entry.relative_to(path)): entry.read_bytes() if entry.is_file() else None for entry in path.rglob("*")}


class TestOpened:
    """Whether a folder can be used at all, and by whom."""

    def test_missing_folders_are_made(self, tmp_path: Path) -> None:
        """The folder comes with its parents, and stays once something is in it."""
        with opened(tmp_path / "a" / "b") as folder:
            folder.logs.mkdir()
        assert (tmp_path / "a" / "b" / "logs").is_dir()

    def test_what_stayed_empty_is_removed(self, tmp_path: Path) -> None:
        """A refusal leaves no empty folders behind, and keeps those that were there."""

        def refuse() -> None:
            with opened(tmp_path / "a" / "b" / "c"):
                raise ConfigurationError("no")

        (tmp_path / "a").mkdir()
        with pytest.raises(ConfigurationError, match="no"):
            refuse()
        assert tree(tmp_path) == {"a": None}

    @pytest.mark.parametrize("out", ["file", "file/below", "file/far/below", "link"])
    def test_a_file_is_no_folder(self, tmp_path: Path, out: str) -> None:
        """A file, a place below one, and a link to nothing are refused by name."""
        (tmp_path / "file").write_text("mine")
        (tmp_path / "link").symlink_to("nowhere")
        with pytest.raises(ConfigurationError, match=rf"--out '.*{out}' is not a folder"), opened(tmp_path / out):
            pass
        assert tree(tmp_path).keys() == {"file", "link"}

    @pytest.mark.skipif(sys.platform != "linux", reason="/proc refuses new files even to root")
    @pytest.mark.parametrize("out", ["/proc/self", "/proc/self/demo", "/proc/demo/of/demos"])
    def test_unwritable(self, out: str) -> None:
        """A folder that takes no file is refused with the system's reason."""
        with pytest.raises(ConfigurationError, match=rf"--out '{out}' cannot be written to \(.+\)"), opened(Path(out)):
            pass

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_without_permission(self, tmp_path: Path) -> None:
        """So is one without permission to write."""
        tmp_path.chmod(0o500)
        with pytest.raises(ConfigurationError, match="Permission denied"), opened(tmp_path / "a"):
            pass

    def test_only_one_demo_at_a_time(self, tmp_path: Path) -> None:
        """A second one is refused while the first holds the folder, and not afterwards (R30)."""
        with (
            opened(tmp_path),
            pytest.raises(StoreLockedError, match=r"another demo is running in '.*'"),
            opened(tmp_path),
        ):
            pass
        with opened(tmp_path):
            pass

    def test_a_dead_demo_holds_nothing(self, tmp_path: Path) -> None:
        """The lock dies with its process, however that ended (R30)."""
        code = (
            "import os, signal, sys; from pathlib import Path; from workspan.cli.demo.folder import opened\n"
            f"with opened(Path({str(tmp_path)!r})): os.kill(os.getpid(), signal.SIGKILL)"
        )
        ended = subprocess.run([sys.executable, "-c", code], check=False)
        assert ended.returncode == -9
        with opened(tmp_path):
            pass


class TestMarker:
    """Telling a demo's folder from any other."""

    def test_round_trip(self, folder: Folder) -> None:
        """A marker reads back as it was written."""
        marker = Marker(8, 1.5, (1, 2, 3), (1.0, 2.0, 3.0), (-1.0, -2.0, -3.0), 17, RESULT)
        folder.write_marker(marker)
        assert folder.marker() == marker

    def test_none_in_a_folder_of_other_things(self, tmp_path: Path) -> None:
        """Files with names of their own do not matter."""
        (tmp_path / "notes.txt").write_text("mine")
        assert Folder(tmp_path).marker() is None

    @pytest.mark.parametrize(
        "name", ["brain.zarr", "tracking", "logs", "slices.png", "flights", "second", "report.html"]
    )
    def test_names_that_somebody_else_uses(self, tmp_path: Path, name: str) -> None:
        """A folder where the demo would write over something is refused, with --fresh too."""
        (tmp_path / name).write_text("mine")
        for look in (Folder(tmp_path).marker, Folder(tmp_path).clear):
            with pytest.raises(ConfigurationError, match=rf"holds '{name}', which no demo made .* nothing was touched"):
                look()
        assert tree(tmp_path) == {name: b"mine"}

    @pytest.mark.parametrize(
        "raw",
        [b"", b"{", b"[]", b"{}", b"null", b'{"workspan_demo": "1"}', b'{"workspan_demo": 2, "x": 1}', b"\xff"],
        ids=repr,
    )
    def test_damaged(self, folder: Folder, raw: bytes) -> None:
        """A marker that cannot be read is said to be damaged; neither resume nor --fresh touch anything."""
        folder.marker_file.write_bytes(raw)
        before = tree(folder.path)
        for look in (folder.marker, folder.clear):
            with pytest.raises(
                InvalidMetadataError, match=r"workspan-demo\.json' is damaged \(.+\): nothing was touched"
            ):
                look()
        assert tree(folder.path) == before

    def test_of_another_version(self, folder: Folder) -> None:
        """A folder of a later demo is not resumed, but may be cleared."""
        folder.marker_file.write_text('{"workspan_demo": 3, "new": []}')
        with pytest.raises(LayoutMismatchError, match=r"a demo of format 3, .* writes format 2"):
            folder.marker()
        folder.clear()
        assert tree(folder.path) == {}


class TestCreate:
    """Writing the input."""

    def test_the_store_appears_complete(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """While the input is written there is no store under its name (KF-25)."""
        seen: list[list[str]] = []
        create = ome.create

        def spy(path: Path, volume: Volume, brain: object) -> None:
            create(path, volume, brain)  # type: ignore[arg-type]
            seen.append(sorted(entry.name for entry in tmp_path.iterdir() if not entry.name.startswith(".")))

        monkeypatch.setattr(ome, "create", spy)
        marker = Folder(tmp_path).create(VOLUME, block=8, sigma=1.0)
        assert seen == [["workspan-demo.json"]]
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["brain.zarr", "workspan-demo.json"]
        assert Folder(tmp_path).marker() == marker
        assert marker.input_bytes is not None

    def test_a_full_disk_leaves_no_part(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A store that could not be completed is removed, with its marker; the next try begins anew (R25)."""

        def full(path: Path, volume: Volume, brain: object) -> None:
            path.mkdir()
            (path / "half").write_text("x")
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(ome, "create", full)
            with pytest.raises(OSError, match="No space left"):
                Folder(tmp_path).create(VOLUME, block=8, sigma=1.0)
        assert list(tmp_path.iterdir()) == []
        assert Folder(tmp_path).create(VOLUME, block=4, sigma=1.0).block == 4

    def test_leftovers_of_a_kill_are_removed(self, folder: Folder) -> None:
        """A part, and a store that was complete a moment before its marker, do not stay."""
        (folder.path / ".brain.zarr-abc").mkdir()
        (folder.store / "old").write_text("x")
        folder.create(VOLUME, block=4, sigma=1.0)
        assert not (folder.store / "old").exists()
        assert sorted(entry.name for entry in folder.path.iterdir()) == ["brain.zarr", "workspan-demo.json"]


class TestChecks:
    """Whether a demo can go on from what is there."""

    def test_untouched(self, folder: Folder) -> None:
        """The input that was written is the input that is found."""
        marker = folder.marker()
        assert marker is not None
        folder.check_input(marker)

    @pytest.mark.parametrize("damage", ["removed", "cut"])
    def test_damaged_input(self, folder: Folder, damage: str) -> None:
        """One chunk that is missing or shorter is enough to refuse (KF-25)."""
        chunk = folder.store / "t1/c/1/0/1"
        if damage == "removed":
            chunk.unlink()
        else:
            chunk.write_bytes(chunk.read_bytes()[:-1])
        marker = folder.marker()
        assert marker is not None
        with pytest.raises(InvalidMetadataError, match=r"the input in '.*t1' is not complete or was changed"):
            folder.check_input(marker)

    def test_missing_output(self, folder: Folder) -> None:
        """Chunks that a finished run has and somebody removed are counted (KF-25)."""
        marker = folder.marker()
        assert marker is not None
        with pytest.raises(InvalidMetadataError, match=r"8 chunks of '.*smooth' are missing although"):
            folder.newest_output(marker)

    def test_newest_output_ignores_the_input(self, folder: Folder) -> None:
        """The stamp is that of the youngest output."""
        marker = folder.marker()
        assert marker is not None
        for stamp, (name, files) in enumerate(ome.chunk_files(folder.store, folder.brain(marker)).items()):
            for file in files:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
                os.utime(file, ns=(0, 10**18 if name == "t1" else stamp))
        assert folder.newest_output(marker) == 5


class TestClear:
    """--fresh."""

    @pytest.fixture
    def full(self, folder: Folder) -> Folder:
        """A folder with something in every place."""
        for task in ("smooth", "measure", "flights"):
            for parent in (folder.tracking, folder.logs):
                (parent / task).mkdir(parents=True)
                (parent / task / "file").write_text("x")
        (folder.tracking / ".workspan").mkdir()
        (folder.tracking / ".workspan" / "smooth.lock").write_text("x")
        folder.picture.write_text("x")
        folder.page.write_text("x")
        for path in (folder.csv, folder.late, folder.second.store):
            path.mkdir(parents=True)
            (path / "file").write_text("x")
        return folder

    def test_everything_of_the_demo_goes(self, full: Folder) -> None:
        """Afterwards the folder is empty."""
        full.clear()
        assert tree(full.path) == {}

    def test_nothing_else_goes(self, full: Folder) -> None:
        """Files that the demo did not make stay, wherever they lie."""
        mine = ["notes.txt", "tracking/other/data", "tracking/.workspan/other.lock", "logs/mine.txt", "brain2.zarr/x"]
        for name in mine:
            path = full.path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("mine")
        full.clear()
        assert {name for name, content in tree(full.path).items() if content is not None} == set(mine)

    @pytest.mark.parametrize(
        "name", ["brain.zarr", "tracking", "logs", "tracking/smooth", "slices.png", "flights", "second"]
    )
    def test_links_are_not_followed(self, full: Folder, tmp_path: Path, name: str) -> None:
        """What a link points to is not the demo's."""
        outside = tmp_path / "outside"
        (outside / "smooth").mkdir(parents=True)
        (outside / "smooth" / "precious").write_text("mine")
        place = full.path / name
        folders._remove(place)
        place.symlink_to(outside)
        full.clear()
        assert tree(outside) == {"smooth": None, "smooth/precious": b"mine"}

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        """Where no demo was, there is nothing to do."""
        Folder(tmp_path).clear()
        assert tree(tmp_path) == {}

    def test_interrupted(self, full: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        """A deletion that was cut off is marked as such, and can be finished."""
        remove: Callable[[Path], None] = folders._remove

        def stop_at_store(path: Path) -> None:
            if path == full.store:
                raise KeyboardInterrupt
            remove(path)

        with monkeypatch.context() as patched:
            patched.setattr(folders, "_remove", stop_at_store)
            with pytest.raises(KeyboardInterrupt):
                full.clear()
        state = full.state()
        assert state is not None
        assert state.deleting
        full.clear()
        assert tree(full.path) == {}
