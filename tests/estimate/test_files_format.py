"""The format of timing files: names, what others wrote, what others can read."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from helpers.timings import documents, step
from workspan.estimate import snapred
from workspan.estimate.recorder import ProgressRecorder

REFERENCE = {
    "steps": [
        {
            "details": {
                "key": ["app.service", "Service.reduce", None],
                "N_ref_hash": "0123456789abcdef",
                "order": "O_N",
            },
            "measurements": [
                {"dt": 2.0, "dt_est": 3.0, "N_ref": 1e9},
                {"dt": 4.0, "dt_est": 6.0, "N_ref": 2e9},
                {"dt": 6.0, "dt_est": None, "N_ref": 3e9, "own": [1]},
                {"dt": 9.0, "dt_est": None, "N_ref": None},
            ],
            "estimate": {"count": [4, 4], "tck": [[0, 0, 3e9, 3e9], [0, 6.0, 0, 0], 1]},
            "note": "theirs",
        },
        {
            "details": {"key": ["app.recipe", "Recipe", "cook"], "N_ref_hash": None, "order": "O_0"},
            "measurements": [],
            "estimate": {"count": [1, 3], "tck": [[0.0, 0.0], [4.5], 0]},
        },
        {
            "details": {"key": ["app.recipe", "Wild", None], "N_ref_hash": None, "order": "O_N"},
            "measurements": [],
            "estimate": {
                "count": [5, 9],
                "tck": [[0, 0, 0, 0, 1e8, 1e8, 1e8, 1e8], [0.0, 5.0, -8.0, 2.0, 0, 0, 0, 0], 3],
            },
        },
    ]
}


def test_names_of_files() -> None:
    """Stamps with zone, fraction, colons or compact; a naive one is local; new ones are unique and compact (E60)."""
    name = "execution_timing_{}.json".format
    moment = datetime(2025, 3, 4, 12, 30, 5, tzinfo=UTC)
    for text in (
        "2025-03-04T12:30:05Z", "2025-03-04T14:30:05+02:00", "20250304T123005Z", "20250304T143005+0200",
        "2025-03-04T12:30:05.000000+00:00", "20250304T123005.000000Z-0a1b2c",
    ):  # fmt: skip
        assert snapred.stamp_of(name(text)) == moment, text
    naive = datetime(2025, 3, 4, 12, 30, 5).astimezone(UTC)
    assert snapred.stamp_of(name("2025-03-04T12:30:05")) == naive
    for other in ("execution_timing_x.json", "timing.json", "execution_timing_2025-03-04T12:30:05Z.json.bad", name("")):
        assert snapred.stamp_of(other) is None
    made = {snapred.file_name(moment) for _ in range(20)}
    assert len(made) == 20
    assert all(snapred.stamp_of(each) == moment and ":" not in each for each in made)


def test_a_real_files_format_is_imported(recorder: ProgressRecorder, home: Path, again: Any) -> None:
    """Every valid file loads: null sizes, curves without measurements, unknown fields, foreign hashes (E61, E62)."""
    home.mkdir()
    (home / "execution_timing_2025-03-04T12:30:05.123456+00:00.json").write_text(json.dumps(REFERENCE))
    reduce, cook, wild = (
        ("app.service", "Service.reduce", None),
        ("app.recipe", "Recipe", "cook"),
        ("app.recipe", "Wild"),
    )
    assert recorder.estimate(reduce, 1.5e9).value == pytest.approx(3.0, rel=0.01)
    assert recorder.forecast(reduce).admitted()[-1].N_ref is None or recorder.forecast(reduce).count == 4
    legacy = recorder.estimate(cook, 1.0)
    assert (legacy.value, legacy.source) == (4.5, "legacy")
    for n in (0.0, 3e7, 6e7, 1e8, 1e9, 1e12):
        value = recorder.estimate(wild, n).value
        assert value is not None
        assert value >= 0.0
        assert math.isfinite(value)
    step(1)
    again()
    items = {tuple(item["details"]["key"]): item for item in json.loads(documents(home)[-1].read_text())["steps"]}
    item = items[reduce]
    assert item["note"] == "theirs"
    assert item["measurements"][2]["own"] == [1]
    assert item["details"]["N_ref_hash"] == "0123456789abcdef"
    assert items[cook]["estimate"]["tck"] == [[0.0, 0.0], [4.5], 0]


def test_what_is_written_others_can_read(recorder: ProgressRecorder, home: Path, clock: Any) -> None:
    """Only known fields inside details, no null estimate, all three fields, known orders, degree at most 3 (E61)."""
    for n in range(1, 9):
        step(float(n), clock.work)
    recorder.stop(recorder.record("custom", N_ref=1.0, order=abs))
    recorder.stop(recorder.record("auto", N_ref=1.0, order="auto"))
    recorder.flush()
    for item in json.loads(documents(home)[-1].read_text())["steps"]:
        assert set(item["details"]) == {"key", "N_ref_hash", "order"}
        assert item["details"]["order"] in (*snapred._ORDERS, None)
        assert "estimate" not in item or item["estimate"]["tck"][2] <= 3
        for measured in item["measurements"]:
            assert {"dt", "dt_est", "N_ref"} <= measured.keys()


def test_the_same_measurement_in_two_snapshots_is_one(recorder: ProgressRecorder, home: Path) -> None:
    """Reference files are cumulative: equal triples across files are one, within a file they are two (E63)."""
    first, _ = snapred.decode(json.dumps(REFERENCE).encode())
    more = json.loads(json.dumps(REFERENCE))
    more["steps"][0]["measurements"].append({"dt": 2.0, "dt_est": 3.0, "N_ref": 1e9})
    second, _ = snapred.decode(json.dumps(more).encode())
    from workspan.estimate.measurements import merge

    merge(first[0], second[0], 50)
    assert first[0].count == 5


def test_a_step_that_stands_in_a_file_twice_has_both_parts(home: Path, recorder: ProgressRecorder) -> None:
    """Nothing is lost of a file that was put together by hand (E62, E65)."""
    home.mkdir(parents=True)
    parts = [
        {
            "details": {"key": ["m", "f", None], "N_ref_hash": None, "order": "O_N"},
            "measurements": [{"dt": dt, "dt_est": None, "N_ref": 1.0}],
        }
        for dt in (1.0, 2.0)
    ]
    (home / "execution_timing_2025-03-04T12:00:00Z.json").write_text(json.dumps({"steps": parts}))
    assert [m.dt for m in recorder.forecast(("m", "f", None)).measurements()] == [1.0, 2.0]
