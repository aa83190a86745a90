"""The folder of a demo: what it made, what it may delete, and whether it can go on from there.

A marker file tells a demo's folder from any other. It is written before the first result and deleted after the last,
so that nothing of the demo ever lies in a folder without one.

=======================  ==============================================================
in the folder            content
=======================  ==============================================================
``workspan-demo.json``   the marker: what was asked for, and what came out
``brain.zarr``           act 1: input and results, OME-Zarr 0.5
``slices.png``           act 1: the picture
``flights/csv``          act 2: the input, a file a month
``flights/late``         act 2: the result, Parquet
``tracking/<task>``      tracking store of each task of act 1
``tracking/flights``     tracking folder of the dataset of act 2
``logs``                 logs of workers, a folder a task
``second``               act 3: the second run, with the same names but for ``csv``
``report.html``          the page about the newest run
=======================  ==============================================================
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from workspan.cli.demo.pipeline import TASKS, Brain
from workspan.errors import ConfigurationError, InvalidMetadataError, LayoutMismatchError, StoreLockedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workspan.cli.demo.nifti import Volume

FORMAT = 2
"""Version of the marker and of everything beside it. 1: the brain alone; 2: three acts."""

MARKER = "workspan-demo.json"
STORE = "brain.zarr"
TRACKING = "tracking"
LOGS = "logs"
PICTURE = "slices.png"
FLIGHTS = "flights"
SECOND = "second"
PAGE = "report.html"
COMPANIONS = ".workspan"
"""Folder beside tracking stores, for their locks and the blocks in flight; a run that was killed leaves some."""
_PART = ".brain.zarr-"
"""Begin of the name of a store that is being written."""


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What came out, computed from the arrays."""

    thresholds: tuple[float, float]
    """Upper intensity of CSF and of grey matter."""
    millilitres: tuple[float, float, float, float]
    """Volume of each label, in ml."""
    shipped_millilitres: tuple[float, float]
    """Volume of the shipped maps of grey and white matter (> 127), in ml."""
    dice: tuple[float, float]
    """Overlap of grey and white matter with the shipped maps, 0..1."""
    written_ns: int
    """Youngest modification time of the arrays it was computed from, epoch nanoseconds."""


class Marker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The brain: what was asked for, and what came out."""

    block: int
    """Block edge, in voxels."""
    sigma: float
    """Of the Gaussian, in voxels."""
    shape: tuple[int, int, int]
    """Voxels per axis (z, y, x)."""
    spacing: tuple[float, float, float]
    """Voxel size per axis (z, y, x), in mm."""
    origin: tuple[float, float, float]
    """Position of voxel (0, 0, 0), (z, y, x), in mm."""
    input_bytes: int | None = None
    """Bytes of all chunk files of the input; ``None`` while it is being written."""
    result: Result | None = None


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A second run, as it was forecast and as it was. Times are seconds of wall time; ``None``: it was not known."""

    wall: float | None
    low: float | None
    """Lower end of the interval."""
    high: float | None
    """Upper end of the interval."""
    basis: str
    """What the forecast was known from."""
    took: float
    """What the run took."""

    @property
    def error(self) -> float | None:
        """Forecast over what it took, less 1: above 0 the forecast was too long."""
        return None if self.wall is None else self.wall / self.took - 1

    @property
    def within(self) -> bool | None:
        """Whether the run ended within the interval."""
        return None if self.low is None or self.high is None else self.low <= self.took <= self.high


class Flights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The input of act 2."""

    bytes: int
    """Of all CSV files; 0 while they are being written."""
    rows: int


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the marker file."""

    workspan_demo: int
    """:data:`FORMAT`"""
    brain: Marker | None = None
    flights: Flights | None = None
    second: dict[str, Outcome] = {}
    """Act -> its second run."""
    deleting: bool = False
    """The folder is being cleared; what is left belongs to no run."""


class _AnyMarker(msgspec.Struct):
    workspan_demo: int


class Folder:
    """One demo's folder; use :func:`opened` to get one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = path / STORE
        self.tracking = path / TRACKING
        self.logs = path / LOGS
        self.picture = path / PICTURE
        self.csv = path / FLIGHTS / "csv"
        self.late = path / FLIGHTS / "late"
        self.page = path / PAGE
        self.marker_file = path / MARKER

    @property
    def second(self) -> Folder:
        """The folder of the second run, which is laid out like this one and has no marker."""
        return Folder(self.path / SECOND)

    # -- the marker ------------------------------------------------------------------------------------------------

    def state(self) -> State | None:
        """Read the marker file; ``None`` if no demo has been here.

        Raises
        ------
        InvalidMetadataError
            The marker is damaged.
        LayoutMismatchError
            The marker is of another version of the demo.
        ConfigurationError
            There is no marker, but something that has a name which the demo would use.
        """
        try:
            raw = self.marker_file.read_bytes()
        except FileNotFoundError:
            names = (STORE, TRACKING, LOGS, PICTURE, FLIGHTS, SECOND, PAGE)
            taken = [name for name in names if os.path.lexists(self.path / name)]
            if taken:
                raise ConfigurationError(
                    f"{str(self.path)!r} holds {', '.join(map(repr, taken))}, which no demo made (there is no "
                    f"{MARKER!r} beside it): nothing was touched, use another --out"
                ) from None
            return None
        try:
            made_by = msgspec.json.decode(raw, type=_AnyMarker).workspan_demo
            if made_by != FORMAT:
                raise LayoutMismatchError(
                    f"{str(self.path)!r} holds a demo of format {made_by}, and this version of workspan writes format "
                    f"{FORMAT}: use another --out, or --fresh to delete what is there"
                )
            return msgspec.json.decode(raw, type=State)
        except msgspec.MsgspecError as error:
            raise InvalidMetadataError(
                f"{str(self.marker_file)!r} is damaged ({error}): nothing was touched, delete the folder or use "
                "another --out"
            ) from error

    def marker(self) -> Marker | None:
        """Read what the marker file says of the brain; ``None``: nothing. Raises what :meth:`state` does."""
        state = self.state()
        return None if state is None else state.brain

    def made_here(self) -> bool:
        """Tell whether a demo of any version made this folder; refuse a folder that it did not make."""
        try:
            return self.state() is not None
        except LayoutMismatchError:
            return True

    def write_state(self, state: State) -> None:
        """Replace the marker file, whole or not at all; a state that says nothing removes it."""
        if state == State(FORMAT):
            _remove(self.marker_file)  # there is nothing that it could mark
            return
        part = self.marker_file.with_name(f".{MARKER}.part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(state)) + b"\n")
        os.replace(part, self.marker_file)

    def change(self, **fields: Any) -> None:
        """Replace some fields of the state."""
        self.write_state(msgspec.structs.replace(self.state() or State(FORMAT), **fields))

    def write_marker(self, marker: Marker) -> None:
        """Replace what the marker file says of the brain."""
        self.change(brain=marker)

    # -- making and deleting ---------------------------------------------------------------------------------------

    def create(self, volume: Volume, *, block: int, sigma: float) -> Marker:
        """Write marker and store for *volume*; a store that is incomplete is never seen under its name."""
        from workspan.cli.demo import ome

        shape = (volume.data.shape[0], volume.data.shape[1], volume.data.shape[2])
        marker = Marker(block, sigma, shape, volume.spacing, volume.origin)
        self.write_marker(marker)
        self._remove_parts()
        _remove(self.store)  # of a demo that ended right before it could say that its input is complete
        part = Path(tempfile.mkdtemp(prefix=_PART, dir=self.path))
        try:
            brain = self.brain(marker)
            ome.create(part / STORE, volume, brain)
            size = sum(file.stat().st_size for file in ome.chunk_files(part / STORE, brain)["t1"])
            os.rename(part / STORE, self.store)
        except BaseException:
            self.change(brain=None)
            raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
        marker = msgspec.structs.replace(marker, input_bytes=size)
        self.write_marker(marker)
        return marker

    def create_flights(self, write: Callable[[Path], Flights]) -> Flights:
        """Have *write* put the flights into a folder, which gets its name when it is complete."""
        state = self.state() or State(FORMAT)
        # Written now if it is the first thing here: nothing of the demo lies in a folder without a marker.
        self.write_state(msgspec.structs.replace(state, flights=Flights(0, 0)))
        self._remove_parts()
        part = Path(tempfile.mkdtemp(prefix=_PART, dir=self.path))
        try:
            written = write(part / "csv")
            _remove(self.csv)
            self.csv.parent.mkdir(exist_ok=True)
            os.rename(part / "csv", self.csv)
        except BaseException:
            _remove_empty(self.csv.parent)
            self.write_state(state)
            raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
        self.write_state(msgspec.structs.replace(state, flights=written))
        return written

    def create_second(self, marker: Marker | None) -> Folder:
        """Make room for a second run of the brain of *marker*, or of the flights, and its input if it has its own."""
        second = self.second
        second.path.mkdir(exist_ok=True)
        if marker is None:
            second.forget_flights()
            return second
        from workspan.cli.demo import ome
        from workspan.cli.demo.nifti import Volume

        for gone in (second.store, *(parent / name for name in TASKS for parent in (second.tracking, second.logs))):
            _remove(gone)
        volume = Volume(self.brain(marker).read("t1"), marker.spacing, marker.origin)
        ome.create(second.store, volume, second.brain(marker))
        return second

    def brain(self, marker: Marker) -> Brain:
        """Where the arrays of this folder are and how they are cut."""
        edge = marker.block
        return Brain(str(self.store), marker.shape, (edge, edge, edge), marker.sigma)

    def clear(self) -> None:
        """Delete what a demo made here, and nothing else; the marker goes last."""
        if not self.made_here():
            return
        # Another format is not ours to write; an interrupted deletion leaves a folder that asks for --fresh again.
        with suppress(LayoutMismatchError):
            self.change(deleting=True)
        for parent in (self.tracking, self.logs):
            if parent.is_symlink():
                continue  # the demo makes no links, so what lies behind this one is somebody's own
            for name in (*TASKS, FLIGHTS):
                _remove(parent / name)
                for companion in (parent / COMPANIONS).glob(f"{name}.*"):
                    _remove(companion)
            _remove_empty(parent / COMPANIONS)
            _remove_empty(parent)
        _remove(self.store)
        for path in (self.picture, self.path / FLIGHTS, self.second.path, self.page):
            _remove(path)
        self._remove_parts()
        _remove(self.marker_file)

    def _remove_parts(self) -> None:
        for part in self.path.glob(f"{_PART}*"):
            _remove(part)

    def forget_flights(self) -> None:
        """Delete what came out of the flights, and what says that it is done."""
        for gone in (self.tracking / FLIGHTS, self.logs / FLIGHTS, self.late):
            _remove(gone)

    # -- looking ---------------------------------------------------------------------------------------------------

    def check_input(self, marker: Marker) -> None:
        """Refuse a folder whose brain is not the one that was written.

        Raises
        ------
        InvalidMetadataError
            Input is missing or has changed.
        """
        from workspan.cli.demo import ome

        try:
            size = sum(file.stat().st_size for file in ome.chunk_files(self.store, self.brain(marker))["t1"])
        except OSError:
            size = -1
        if size != marker.input_bytes:
            raise InvalidMetadataError(
                f"the input in {str(self.store / 't1')!r} is not complete or was changed: "
                "use --fresh to delete this demo and start anew"
            )

    def check_flights(self, written: Flights) -> None:
        """Refuse a folder whose flights are not those that were written.

        Raises
        ------
        InvalidMetadataError
            Input is missing or has changed.
        """
        if sum(file.stat().st_size for file in self.csv.glob("*.csv")) != written.bytes:
            raise InvalidMetadataError(
                f"the input in {str(self.csv)!r} is not complete or was changed: "
                "use --fresh to delete this demo and start anew"
            )

    def newest_output(self, marker: Marker) -> int:
        """Youngest modification time of the output chunks, epoch nanoseconds.

        Raises
        ------
        InvalidMetadataError
            A chunk is missing: its block is marked as done, but somebody removed what it wrote.
        """
        from workspan.cli.demo import ome

        newest = 0
        for name, files in ome.chunk_files(self.store, self.brain(marker)).items():
            if name == "t1":
                continue
            missing = 0
            for file in files:
                try:
                    newest = max(newest, file.stat().st_mtime_ns)
                except FileNotFoundError:
                    missing += 1
            if missing:
                raise InvalidMetadataError(
                    f"{missing} chunks of {str(self.store / name)!r} are missing although their blocks are marked as "
                    "done: use --fresh to delete this demo and start anew"
                )
        return newest


@contextmanager
def opened(path: Path) -> Iterator[Folder]:
    """Make sure that *path* is a folder one can write to, and hold it for this process.

    Folders that had to be made and stayed empty are removed at the end.

    Raises
    ------
    ConfigurationError
        *path* is not a folder, or cannot be written to.
    StoreLockedError
        Another demo runs in it.
    """
    made = _make(path)
    try:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            _hold(path, descriptor)
            try:
                with tempfile.TemporaryFile(dir=path):
                    pass
            except OSError as error:
                raise _unusable(path, error) from error
            yield Folder(path)
        finally:
            os.close(descriptor)
    finally:
        for folder in reversed(made):
            _remove_empty(folder)


def _make(path: Path) -> list[Path]:
    """Make *path* and its parents; return those that did not exist, outermost first."""
    missing = []
    try:
        at = path
        while not os.path.lexists(at):
            missing.append(at)
            at = at.parent
        missing.reverse()
        if not path.is_dir():
            for folder in missing or [path]:
                folder.mkdir()
    except OSError as error:
        for folder in reversed(missing):
            _remove_empty(folder)
        raise _unusable(path, error) from error
    return missing


def _unusable(path: Path, error: OSError) -> ConfigurationError:
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return ConfigurationError(
            f"--out {str(path)!r} is not a folder, or lies below something that is none: name a folder"
        )
    return ConfigurationError(
        f"--out {str(path)!r} cannot be written to ({error.strerror or error}): name another folder"
    )


def _hold(path: Path, descriptor: int) -> None:
    """Lock the folder for as long as *descriptor* is open; a process that dies lets go."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreLockedError(
            f"another demo is running in {str(path)!r}: wait until it ends, or use another --out"
        ) from None
    except OSError:
        pass  # some network file systems lock no folders; the tracking stores have locks of their own


def _remove(path: Path) -> None:
    """Delete a file, a folder with all in it, or a link but not what it points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_empty(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()
