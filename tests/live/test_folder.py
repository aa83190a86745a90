"""The folder of the sockets: only what is safe is used, and only what is ours and dead is taken away."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from workspan import config
from workspan.errors import ConfigurationError
from workspan.live import folder as folders


@pytest.fixture
def dead() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def leftover(place: Path) -> Callable[..., Path]:
    """Leave a socket behind on which nobody listens: ``leftover(name)``."""
    folders.prepare(place)

    def make(name: str) -> Path:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(place / name))
        return place / name

    return make


class TestPlaces:
    """Where sockets may be."""

    def test_the_runtime_folder_comes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """XDG_RUNTIME_DIR, then TMPDIR and /tmp with a folder of the user's own (E104)."""
        monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/me")
        monkeypatch.setenv("TMPDIR", "/scratch")
        user = os.geteuid()
        assert list(map(str, folders.places())) == [
            "/run/me/workspan",
            f"/run/user/{user}/workspan",
            f"/scratch/workspan-{user}",
            f"/tmp/workspan-{user}",
        ]

    def test_a_named_folder_is_the_only_one(self, place: Path) -> None:
        """Both ends look only where they are told to."""
        assert folders.places() == [place]

    def test_relative_places_are_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two terminals stand in different folders, so a relative one is not the same for both (E104)."""
        monkeypatch.setenv("XDG_RUNTIME_DIR", "run")
        assert all(place.is_absolute() for place in folders.places())


class TestPrepare:
    """Whose folder it is."""

    def test_it_is_made_for_its_owner_only(self, place: Path) -> None:
        """Whatever the umask, nobody else may look in, and the socket has mode 0600 (E105, R48)."""
        before = os.umask(0)
        try:
            folders.prepare(place)
            listener, path = folders.bind(place, "a.py", 7)
        finally:
            os.umask(before)
        with closing(listener):
            assert stat.S_IMODE(place.stat().st_mode) == 0o700
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert path.name == "a.py-7.sock"
            assert os.listdir(place) == [path.name]

    @pytest.mark.parametrize("mode", [0o755, 0o710, 0o702])
    def test_open_to_others(self, place: Path, mode: int) -> None:
        """A folder that others may enter is refused, not mended: whoever opened it may be in it already (E105)."""
        place.mkdir()
        place.chmod(mode)
        with pytest.raises(ConfigurationError, match=rf"is open to others \(mode {mode:04o}\); chmod 700 it"):
            folders.prepare(place)
        assert folders.candidates(place) == []

    def test_a_link(self, place: Path) -> None:
        """A link is refused, wherever it leads (E105, R48)."""
        real = place.with_name("real")
        real.mkdir(mode=0o700)
        place.symlink_to(real)
        with pytest.raises(ConfigurationError, match="is a link or a file"):
            folders.prepare(place)
        assert os.listdir(real) == []

    def test_a_file(self, place: Path) -> None:
        """A file in its place is refused (E105)."""
        place.write_text("")
        with pytest.raises(ConfigurationError, match="is a link or a file"):
            folders.prepare(place)

    def test_somebody_elses(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A folder of another user is refused, by both ends (E105)."""
        folders.prepare(place)
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
        with pytest.raises(ConfigurationError, match=f"belongs to user {owner}, not to you"):
            folders.prepare(place)
        assert folders.candidates(place) == []


class TestBind:
    """The socket and its name."""

    def test_too_long(self, place: Path) -> None:
        """A path above the system's limit is a clear error with the path, its length and the limit (E104, KF-71)."""
        long = place / ("x" * 100)
        long.mkdir(parents=True)
        length = len(os.fsencode(long / "a.py-7.sock"))
        with pytest.raises(ConfigurationError, match=rf"a.py-7.sock' has {length} bytes, a socket may have 10[37]"):
            folders.bind(long, "a.py", 7)

    def test_a_long_script_name_is_cut(self, place: Path) -> None:
        """A long name costs no program its viewers, and what is no plain character is replaced (E104, KF-71)."""
        folders.prepare(place)
        listener, path = folders.bind(place, "ü /" + "x" * 300, 7)
        with closing(listener):
            assert path.name.startswith("_xxx")
            assert path.name.endswith("-7.sock")
            assert len(os.fsencode(path)) <= folders.MAX_PATH_BYTES
            assert [found.pid for found in folders.candidates(place)] == [7]

    def test_a_leftover_is_replaced(self, place: Path, leftover: Callable[..., Path]) -> None:
        """A socket on which nobody listens gives way (E111)."""
        old = leftover("a.py-7.sock")
        listener, path = folders.bind(place, "a.py", 7)
        with closing(listener):
            assert path == old
            assert folders.is_live(path)

    def test_one_that_answers_is_not(self, place: Path) -> None:
        """A socket on which somebody listens is left alone: the newcomer, perhaps of another container, goes beside it
        (E111)."""
        folders.prepare(place)
        first, path = folders.bind(place, "a.py", 7)
        second, other = folders.bind(place, "a.py", 7)
        with closing(first), closing(second):
            assert other.name == "a.py-7.1.sock"
            assert folders.is_live(path)
            assert [found.pid for found in folders.candidates(place)] == [7, 7]

    def test_a_planted_link_is_neither_followed_nor_replaced(self, place: Path) -> None:
        """What is not a socket of ours stays, and so does what it points to (R48)."""
        folders.prepare(place)
        victim = place.with_name("victim")
        victim.write_text("precious")
        (place / "a.py-7.sock").symlink_to(victim)
        listener, path = folders.bind(place, "a.py", 7)
        with closing(listener):
            assert path.name == "a.py-7.1.sock"
            assert victim.read_text() == "precious"
            assert (place / "a.py-7.sock").is_symlink()

    def test_all_names_taken(self, place: Path) -> None:
        """Nine things in the way are enough (E111)."""
        folders.prepare(place)
        for name in ("a.py-7.sock", *(f"a.py-7.{n}.sock" for n in range(1, 9))):
            (place / name).write_text("")
        with pytest.raises(ConfigurationError, match="taken"):
            folders.bind(place, "a.py", 7)
        assert len(os.listdir(place)) == 9


def test_leftovers_are_swept(place: Path, dead: int, leftover: Callable[..., Path]) -> None:
    """Sockets of killed programs go, also unfinished ones; those of the living, and other files, stay (R32)."""
    gone = [leftover(f"a.py-{dead}.sock"), leftover(f".{dead}.00ff")]
    kept = [leftover(f"a.py-{os.getpid()}.sock"), leftover("other.sock"), place / f"b.py-{dead}.sock"]
    kept[-1].write_text("no socket")
    folders.sweep(place)
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in kept)


def test_a_socket_that_answers_survives_a_sweep(place: Path, dead: int) -> None:
    """A pid that is not seen may be another container's: who answers is alive (R32)."""
    folders.prepare(place)
    listener, path = folders.bind(place, "a.py", dead)
    with closing(listener):
        folders.sweep(place)
        assert path.exists()


def test_the_folder_goes_with_the_last(tmp_path: Path) -> None:
    """An empty folder is removed, one that is in use or that somebody named is not."""
    folders.prepare(tmp_path / "s")
    (tmp_path / "s" / "x").write_text("")
    folders.leave(tmp_path / "s")
    assert (tmp_path / "s").exists()
    (tmp_path / "s" / "x").unlink()
    config.configure(live={"directory": tmp_path / "s"})
    folders.leave(tmp_path / "s")
    assert (tmp_path / "s").exists()
    config.reset()
    folders.leave(tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_the_user_at_the_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system says whose process is connected (E105)."""
    one, other = socket.socketpair()
    with one, other:
        assert folders.same_user(one)
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        assert not folders.same_user(one)
