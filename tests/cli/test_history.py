"""``workspan history``: list, show, discard, prune, import, export."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from workspan import config
from workspan.cli import main
from workspan.estimate.files import TimingFolder
from workspan.estimate.keys import Key
from workspan.estimate.measurements import Measurement, StepHistory
from workspan.views.history import _percent


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with three steps; the function has two sections."""
    config.reset()
    steps = {}
    for name, begin in ((None, 1.7e9), ("load", 1.7e9), ("save", 1.6e9)):
        key = Key("app", "Reduction.reduce", name)
        kept = steps[key] = StepHistory(key, order="O_N", used=begin)
        for n in range(1, 7):
            measured = Measurement(n * 2.0, n * 1e6, n * 2.2, f"{name}-{n}", begin + n, "src1:0", 1)
            kept.variant(None).measurements.append(measured)
    TimingFolder(tmp_path / "timing").save(steps)
    yield tmp_path / "timing"
    config.reset()


def history(*words: object) -> int:
    """Run the command."""
    return main(["history", *map(str, words)])


def test_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each step: runs, order, degree, source, last error (E71)."""
    assert history("list", "--directory", folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "step"
    assert lines[1].split() == ["app.Reduction.reduce", "6", "O_N", "3", "model", "+10", "%"]
    assert len(lines) == 4
    assert history("list", "--directory", folder / "none") == 0
    assert "no step was ever measured" in capsys.readouterr().out


def test_long_names_fit_the_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is no wider than the terminal; an error that rounds to nothing has no sign (E71)."""
    monkeypatch.setattr("workspan.views.terminal.columns_of", lambda stream: 54)
    assert history("list", "--directory", folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 54
    assert lines[2].split()[0].startswith("app.R")
    assert "…" in lines[2].split()[0]
    assert [_percent(part) for part in (0.004, -0.004, 0.1, None)] == ["0 %", "0 %", "+10 %", "-"]


def test_an_error_beyond_percents_is_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An estimate of 3 s for 8.43 us reads as people say it, in list and show, not as a factor (E71)."""
    kept = StepHistory(Key("app", "quick"), order="O_0", used=1.7e9)
    kept.variant(None).measurements.append(Measurement(8.43e-6, 1.0, 3.0, start=1.7e9))
    TimingFolder(tmp_path).save({kept.key: kept})
    assert history("list", "--directory", tmp_path) == 0
    assert capsys.readouterr().out.rstrip().endswith("356,000 times too long")
    assert history("show", "quick", "--directory", tmp_path) == 0
    assert "median 356,000 times the time taken, last 356,000 times too long" in capsys.readouterr().out
    assert [_percent(part) for part in (12.0, 1e12)] == ["13 times too long", "over a billion times too long"]


def test_show(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measurements, curve, error so far, and a plot, in ASCII; the end of a name is enough (E71)."""
    assert history("show", "reduce", "--directory", folder) == 0
    text = capsys.readouterr().out
    assert text.isascii()
    assert text.startswith("app.Reduction.reduce\n")
    assert "error so far median 10 % of the time taken, last +10 %" in text
    assert "model, degree 3, from 6 runs" in text
    assert text.count("12.0 s") >= 1
    plot = [line.partition("|")[2] for line in text.splitlines() if "|" in line]
    assert len(plot) == 12
    assert plot[0].rstrip()[-1] in "o*"
    assert plot[-1].strip() == "" or plot[-1].strip()[0] in "o*."
    assert "1e+06" in text


@pytest.mark.parametrize(
    ("name", "text"),
    [("nothing", "no step is called 'nothing'; measured are app.Reduction.reduce, "), ("", "no step is called ''")],
)
def test_a_wrong_name_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], name: str, text: str) -> None:
    """Exit code 2, and the names that there are (E71)."""
    assert history("show", name, "--directory", folder) == 2
    assert text in capsys.readouterr().err


def test_discard(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The measurements of one step are gone, those of the others are not (E71)."""
    assert history("discard", "load", "--directory", folder) == 0
    assert "app.Reduction.reduce.load: 6 measurements discarded" in capsys.readouterr().out
    counts = {key.step_name: kept.count for key, kept in TimingFolder(folder).load().items()}
    assert counts == {None: 6, "load": 0, "save": 6}


def test_prune(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps by age, measurements by number (E71)."""
    import time

    age = (time.time() - 1.65e9) / 86400
    assert history("prune", "--days", age, "--keep", 4, "--directory", folder) == 0
    assert "app.Reduction.reduce.save: forgotten with 6 measurements" in capsys.readouterr().out
    assert {key.step_name: kept.count for key, kept in TimingFolder(folder).load().items()} == {None: 4, "load": 4}
    assert history("prune", "--keep", 0, "--directory", folder) == 2


def test_export_and_import(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is exported can be imported elsewhere, twice without doubling (E63, E71)."""
    file = tmp_path / "out.json"
    assert history("export", file, "load", "reduce", "--directory", folder) == 0
    assert len(json.loads(file.read_text())["steps"]) == 2
    for expected in ("12 measurements of 2 steps imported", "0 measurements of 2 steps imported"):
        assert history("import", file, "--directory", tmp_path / "new") == 0
        assert expected in capsys.readouterr().out
    assert sum(kept.count for kept in TimingFolder(tmp_path / "new").load().values()) == 12
    assert history("import", folder, "--directory", tmp_path / "new") == 0
    assert "6 measurements of 3 steps imported" in capsys.readouterr().out
    file.write_text("{")
    assert history("import", file, "--directory", tmp_path / "new") == 2
    assert "cannot be imported: it is not JSON" in capsys.readouterr().err
    assert history("export", "-", "--directory", folder) == 0
    assert len(json.loads(capsys.readouterr().out)["steps"]) == 3


def test_what_others_threw_away_is_none_of_ours(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An imported step that was discarded where it comes from deletes nothing here (E71)."""
    assert history("discard", "load", "--directory", folder) == 0
    file = tmp_path / "out.json"
    assert history("export", file, "--directory", folder) == 0
    content = json.loads(file.read_text())
    (step,) = [each for each in content["steps"] if each["details"]["key"][2] == "load"]
    assert step["discarded"] > 0
    step["measurements"] = [{"dt": 1.0, "dt_est": None, "N_ref": 5.0}]
    file.write_text(json.dumps(content))
    assert history("import", file, "--directory", tmp_path / "new") == 0
    step["measurements"] = []
    file.write_text(json.dumps(content))
    assert history("import", file, "--directory", tmp_path / "new") == 0
    capsys.readouterr()
    assert history("show", "load", "--directory", tmp_path / "new") == 0
    assert "1 kept" in capsys.readouterr().out


def test_an_export_to_a_full_disk_leaves_what_was_there(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is written beside the old one and then takes its place (E66)."""
    file = tmp_path / "out.json"
    file.write_text("old")

    def full(path: Path, data: bytes) -> int:
        path.open("wb").close()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert history("export", file, "--directory", folder) == 2
    assert "out.json' cannot be written: No space left on device" in capsys.readouterr().err
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


def test_what_cannot_be_read_is_refused_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file without end, a folder that is none, a file of a later version: no step less, and never a crash (R60)."""
    assert history("import", "/dev/zero", "--directory", tmp_path / "new") == 2
    assert "'/dev/zero' cannot be imported: it has more than 64 MiB" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert history("list", "--directory", tmp_path / "file") == 2
    assert "cannot be read: Not a directory" in capsys.readouterr().err
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "execution_timing_20300101T000000Z.json").write_text(
        '{"format": "workspan-timing", "version": 99, "steps": []}'
    )
    assert history("list", "--directory", tmp_path / "later") == 2
    assert "cannot be shown: execution_timing_20300101T000000Z.json must not be replaced" in capsys.readouterr().err


def test_a_name_from_a_file_stays_on_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a forged line nor a control sequence, in a table, a message or an error (KF-72)."""
    (tmp_path / "in.json").write_text(
        json.dumps(
            {
                "steps": [
                    {
                        "details": {"key": ["m", "q\r\nINFO done\x1b[2J", None]},
                        "measurements": [{"dt": 1e-9, "dt_est": 3}],
                    }
                ]
            }
        )
    )
    for words in (("import", tmp_path / "in.json"), ("list",), ("show", "none"), ("prune", "--days", "0")):
        history(*words, "--directory", tmp_path)
    shown = "".join(capsys.readouterr())
    assert shown.count("q\\r\\nINFO done\\x1b[2J") == 3
    assert not any(line.startswith("INFO") for line in shown.splitlines())


def test_nothing_is_written_where_that_is_not_wanted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """timing.persistent_data=false refuses what would write (E64)."""
    config.configure(timing={"persistent_data": False})
    before = sorted(folder.iterdir())
    assert history("discard", "load", "--directory", folder) == 2
    assert "timing.persistent_data is false" in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before
