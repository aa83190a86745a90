"""Where the sockets are: a folder of the user that nobody else can enter.

The running program and the viewer look for it in the same places, in the same order, and trust it on the same terms.
A socket is called ``<program>-<pid>.sock``. What is left over by a program that was killed is taken away by whoever
finds it; nothing is ever taken away that is not a socket of this user in such a folder, or that answers.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from workspan import config
from workspan.errors import ConfigurationError

__all__ = [
    "MAX_PATH_BYTES",
    "Candidate",
    "bind",
    "candidates",
    "check",
    "is_live",
    "leave",
    "places",
    "prepare",
    "remove_stale",
    "same_user",
    "sweep",
]

MAX_PATH_BYTES = 107 if sys.platform.startswith("linux") else 103
"""Longest path of a Unix socket on this system, in bytes."""

# Compiled when they are needed: to open a socket in an empty folder they are not, and every run does that.
_NAME = r"(?P<name>[A-Za-z0-9._-]+)-(?P<pid>\d{1,10})(\.\d)?\.sock"
_UNFINISHED = r"\.(?P<pid>\d{1,10})\.[0-9a-f]{4}"
_FOREIGN = r"[^A-Za-z0-9._-]+"
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_MOST_NAME = 40
_MOST_OF_ONE_PID = 9


class Candidate(NamedTuple):
    """A socket of a program that seems to run."""

    path: Path
    name: str
    """Its script, with other characters than letters, digits, ``.``, ``_`` and ``-`` replaced."""
    pid: int


def places() -> list[Path]:
    """Folders in which sockets may be, the best first; they need not exist.

    ``XDG_RUNTIME_DIR`` is private already; a temp folder belongs to everybody, so the folder there bears the user's
    number.
    """
    if (own := config.get("live.directory")) is not None:
        return [own.absolute()]
    user = os.geteuid()
    runtime = [Path(base) / "workspan" for base in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{user}") if base]
    shared = [Path(base) / f"workspan-{user}" for base in (os.environ.get("TMPDIR"), "/tmp") if base]
    return list(dict.fromkeys(place for place in runtime + shared if place.is_absolute()))


def check(folder: Path) -> None:
    """Make sure that only this user can get at what is in *folder*.

    Raises
    ------
    ConfigurationError
        It is a link or no folder, belongs to somebody else, or is open to others.
    OSError
        It is not there.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigurationError(f"{str(folder)!r} is a link or a file, not a folder; remove it")
    if found.st_uid != os.geteuid():
        raise ConfigurationError(f"{str(folder)!r} belongs to user {found.st_uid}, not to you")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigurationError(f"{str(folder)!r} is open to others (mode {mode:04o}); chmod 700 it")


def prepare(folder: Path) -> None:
    """Make *folder*, for this user only, unless it is there.

    Raises
    ------
    ConfigurationError
        As for :func:`check`, or sockets in it would have names that are too long.
    OSError
        It cannot be made.
    """
    if is_named(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    check(folder)


def bind(folder: Path, name: str, pid: int) -> tuple[socket.socket, Path]:
    """Listen on a new socket in *folder*, which :func:`prepare` has made.

    It gets its name once it answers, so that nobody takes it for a leftover. A leftover under that name is replaced;
    a socket that answers is not (another machine's or container's program may have the same pid).

    Parameters
    ----------
    folder, name, pid
        Where, and whose; *name* may hold any character.

    Returns
    -------
    tuple
        The socket, not blocking and closed to children, and its path.

    Raises
    ------
    ConfigurationError
        The path would be too long, or all names are taken.
    OSError
        The system refuses.
    """
    room = MAX_PATH_BYTES - len(os.fsencode(folder / f"-{pid}.0.sock"))
    if room < 1:
        shown = folder / f"{safe_name(name)}-{pid}.sock"
        length = len(os.fsencode(shown))
        raise ConfigurationError(f"{str(shown)!r} has {length} bytes, a socket may have {MAX_PATH_BYTES}")
    stem = f"{safe_name(name)[: min(room, _MOST_NAME)]}-{pid}"
    paths = [folder / f"{stem}{suffix}.sock" for suffix in ("", *(f".{n}" for n in range(1, _MOST_OF_ONE_PID)))]
    path = next((path for path in paths if not os.path.lexists(path) or remove_stale(path)), None)
    if path is None:
        raise ConfigurationError(f"{str(paths[0])!r} and the names after it are taken by running programs")
    making = folder / f".{pid}.{os.urandom(2).hex()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fspath(making))
        making.chmod(0o600)
        listener.listen(16)
        listener.setblocking(False)
        making.replace(path)
    except BaseException:
        listener.close()
        with suppress(OSError):
            making.unlink()
        raise
    return listener, path


def is_named(folder: Path) -> bool:
    """Whether somebody has named *folder* for sockets."""
    named = config.get("live.directory")
    return named is not None and folder == named.absolute()


def leave(folder: Path) -> None:
    """Remove *folder* if it is empty, and none that somebody has named."""
    if not is_named(folder):
        with suppress(OSError):
            folder.rmdir()


def candidates(folder: Path) -> list[Candidate]:
    """List the sockets in *folder*, by pid; none if it is not there or cannot be trusted."""
    try:
        check(folder)
        names = os.listdir(folder)
    except (OSError, ConfigurationError):
        return []
    found = [(match, name) for name in names if (match := re.fullmatch(_NAME, name))]
    return sorted(
        (Candidate(folder / name, match["name"], int(match["pid"])) for match, name in found),
        key=lambda candidate: (candidate.pid, candidate.path),
    )


def sweep(folder: Path, own: str = "") -> None:
    """Take away the sockets of programs that have ended without doing so themselves; *own* is this program's."""
    with suppress(OSError, ConfigurationError):
        check(folder)
        for name in os.listdir(folder):
            match = name != own and (re.fullmatch(_NAME, name) or re.fullmatch(_UNFINISHED, name))
            if match and not is_running(int(match["pid"])):
                remove_stale(folder / name)


def remove_stale(path: Path) -> bool:
    """Take away a socket of this user that does not answer; whether it is gone."""
    with suppress(OSError):
        found = path.lstat()
        if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid() and not is_live(path):
            path.unlink()
            return True
    return False


def is_live(path: Path) -> bool:
    """Whether somebody listens at *path*."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except BlockingIOError:  # its queue is full
            return True
        except OSError:
            return False
    return True


def is_running(pid: int) -> bool:
    """Whether there is a process of that number, as far as this one can see."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def safe_name(name: str) -> str:
    """Return *name* in characters that a socket may have in its name.

    Examples
    --------
    >>> safe_name("my reduction.py"), safe_name("/")
    ('my_reduction.py', '_')
    """
    return (name if _PLAIN.issuperset(name) else re.sub(_FOREIGN, "_", name)) or "_"


def same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end is this user's, or the system cannot tell."""
    if hasattr(socket, "SO_PEERCRED"):
        size = struct.calcsize("3i")
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return bool(user == os.geteuid())
    if hasattr(socket, "LOCAL_PEERCRED"):
        data = connection.getsockopt(0, socket.LOCAL_PEERCRED, struct.calcsize("2I"))
        return bool(struct.unpack_from("2I", data)[1] == os.geteuid())
    return True
