"""Whether the kernel kills processes of this machine, or of this container, because memory has run out."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60
"""A v1 control group without a limit shows a number of this size."""


class MemoryWatch:
    """Counts the kernel's kills for lack of memory since it was made.

    It reads the counter of this process's memory control group (version 2 or 1) or, where that has none, the machine's.
    A kill that belongs to another container can be counted in the latter case only.

    Parameters
    ----------
    proc, cgroup
        Mount points of the two file systems.
    """

    def __init__(self, proc: Path = _PROC, cgroup: Path = _CGROUP) -> None:
        self._counter, self._limit_file = _files(proc, cgroup)
        self._seen = self._kills()

    def took_one(self) -> bool:
        """Whether there was a kill that no earlier call has told of: several workers may be killed at once."""
        now = self._kills()
        if now is None or self._seen is None or now <= self._seen:
            return False
        self._seen += 1
        return True

    @property
    def limit_bytes(self) -> int | None:
        """Memory limit of the control group, in bytes; ``None`` without one."""
        if self._limit_file is None:
            return None
        with suppress(OSError, ValueError):
            limit = int(self._limit_file.read_text())
            return limit if limit < _NO_LIMIT else None
        return None

    def _kills(self) -> int | None:
        if self._counter is not None:
            with suppress(OSError, ValueError):
                for line in self._counter.read_text().splitlines():
                    name, _, value = line.partition(" ")
                    if name == "oom_kill":
                        return int(value)
        return None


def _files(proc: Path, cgroup: Path) -> tuple[Path | None, Path | None]:
    """Return the files with the kernel's counter and with the memory limit."""
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                names = ("", "memory.events", "memory.max")
            elif "memory" in controllers.split(","):
                names = ("memory", "memory.oom_control", "memory.limit_in_bytes")
            else:
                continue
            # Inside a container the group's path may be the host's, and its root is what is mounted.
            for folder in (cgroup / names[0] / path.lstrip("/"), cgroup / names[0]):
                if (folder / names[1]).is_file():
                    return folder / names[1], folder / names[2]
    counter = proc / "vmstat"
    return (counter if counter.is_file() else None), None
