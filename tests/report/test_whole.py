"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from threading import Thread

import pytest

from workspan.report.whole import whole_file


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    """Half a file never takes the place of a whole one, and nothing is left of it (R25)."""
    path = tmp_path / "page.html"
    path.write_text("old")

    def fail() -> None:
        with whole_file(path) as file:
            file.write_text("ne")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("page.html", "old")]


def test_a_link_stays(tmp_path: Path) -> None:
    """Where a name is a link, the file that it leads to is replaced and not the link (R25)."""
    (tmp_path / "to").mkdir()
    link = tmp_path / "page.html"
    link.symlink_to(tmp_path / "to" / "page.html")
    with whole_file(link) as file:
        file.write_text("new")
    assert link.is_symlink()
    assert (tmp_path / "to" / "page.html").read_text() == "new"


def test_a_device_stays(tmp_path: Path) -> None:
    """What is no file is written to and not replaced: -o /dev/null must not break the machine (R25)."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    told: list[str] = []
    reader = Thread(target=lambda: told.append(pipe.read_text()))
    reader.start()
    with whole_file(pipe) as file:
        file.write_text("new")
    reader.join(20)
    assert told == ["new"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
