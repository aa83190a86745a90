"""The JSON of trace events: what every reader of the form relies on, and text from outside that stays text."""

from __future__ import annotations

import json
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.recorded import record
from workspan.report.recorded import find
from workspan.report.trace import read_trace
from workspan.views.trace import render_trace

WALLS = np.linspace(0.1, 0.3, 12)
HOSTILE = '</script>"\\\x1b[2J'

#: Phase of an event -> its keys with their types, as the description of the form has them.
SCHEMA: dict[str, dict[str, type | tuple[type, ...]]] = {
    "M": {"name": str, "args": dict},
    "X": {"name": str, "ts": int, "dur": int, "cat": str, "args": dict},
    "i": {"name": str, "ts": int, "s": str, "cat": str, "args": dict},
    "C": {"name": str, "ts": int, "args": dict},
}


def events(folder: Path, **kwargs: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events and the rest of the file."""
    text = "".join(render_trace(read_trace(find(folder), limit=10**6), **kwargs))
    assert text.isascii()
    whole = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    return whole.pop("traceEvents"), whole


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two tasks of two workers and two steps."""
    for task in ("a", HOSTILE):
        steps = {"read": WALLS / 4, HOSTILE: WALLS / 2}
        record(tmp_path / task[:1], WALLS, task_id=task, steps=steps, failed=1)
    return tmp_path


@pytest.mark.parametrize("lanes", ["workers", "steps"])
def test_events_have_the_documented_keys(folder: Path, lanes: Any) -> None:
    """Each event has the keys of its phase, with their types, and no time is negative (M101)."""
    found, rest = events(folder, lanes=lanes)
    assert rest["displayTimeUnit"] == "ms"
    for event in found:
        schema = {"pid": int, "tid": int, "ph": str, **SCHEMA[event["ph"]]}
        assert set(event) == set(schema)
        assert all(isinstance(event[key], kind) for key, kind in schema.items())
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())


@pytest.mark.parametrize("lanes", ["workers", "steps"])
def test_slices_of_a_lane_are_nested(folder: Path, lanes: Any) -> None:
    """Two slices of a lane lie one in the other, the outer one first, or follow each other (M101)."""
    found, _ = events(folder, lanes=lanes)
    slices = [event for event in found if event["ph"] == "X"]
    slices.sort(key=lambda event: event["tid"])
    for _, lane in groupby(slices, key=lambda event: event["tid"]):
        stack: list[int] = []
        for event in sorted(lane, key=lambda event: event["ts"]):
            while stack and stack[-1] <= event["ts"]:
                stack.pop()
            end = event["ts"] + event["dur"]
            assert not stack or end <= stack[-1]
            stack.append(end)


def test_a_process_a_task_and_a_thread_a_worker(folder: Path) -> None:
    """Tasks and workers have names; numbers of threads belong to one process only (M101)."""
    found, _ = events(folder)
    named = {(e["name"], e["pid"], e["tid"]): e["args"] for e in found if e["ph"] == "M"}
    processes = {pid: told["name"] for (key, pid, _), told in named.items() if key == "process_name"}
    assert sorted(processes.values()) == sorted(["a", HOSTILE.replace("\x1b", "\\x1b")])
    threads = [(tid, told["name"]) for (key, _, tid), told in named.items() if key == "thread_name"]
    assert [name for _, name in threads] == ["runs", "worker 0", "worker 1"] * 2
    assert len({tid for tid, _ in threads}) == 6


def test_steps_fill_their_block_and_say_how_they_were_placed(folder: Path) -> None:
    """Steps of a block are laid end to end from its begin, with their self times, and say so (M101)."""
    found, rest = events(folder)
    slices = [event for event in found if event["ph"] == "X" and event["cat"] in ("block", "step")]
    blocks = [n for n, event in enumerate(slices) if event["cat"] == "block"]
    for at, stop in pairwise([*blocks, len(slices)]):
        block, *steps = slices[at:stop]
        wall = block["args"]["wall_s"] * 1e6
        assert [step["dur"] / wall for step in steps] == [pytest.approx(share, abs=1e-4) for share in (0.25, 0.5)]
        assert steps[0]["ts"] == block["ts"]
        assert all(a["ts"] + a["dur"] == b["ts"] for a, b in pairwise(steps))
        assert all(step["args"]["position"] == "not recorded" for step in steps)
    assert any("end to end" in note for note in rest["otherData"]["notes"])


def test_each_step_may_have_a_lane(folder: Path) -> None:
    """With lanes by step, a lane holds the slices of one step of one worker, and says which (M101)."""
    found, _ = events(folder, lanes="steps")
    names = {e["tid"]: e["args"]["name"] for e in found if e["ph"] == "M" and e["name"] == "thread_name"}
    steps = [event for event in found if event["ph"] == "X" and event["cat"] == "step"]
    assert steps
    assert all(names[event["tid"]].endswith(f": {event['name']}") for event in steps)


def test_steps_of_several_threads_are_shortened(tmp_path: Path) -> None:
    """Steps that ran at the same time sum to more than their block: they are fitted in, and tell their time (M101)."""
    record(tmp_path, WALLS, steps={"one": WALLS, "two": WALLS})
    found, _ = events(tmp_path)
    block, one, two = [event for event in found if event["ph"] == "X" and event["cat"] in ("block", "step")][:3]
    assert two["ts"] + two["dur"] <= block["ts"] + block["dur"]
    assert one["dur"] == pytest.approx(block["dur"] / 2, abs=2)
    assert two["args"]["shortened_from_us"] == pytest.approx(block["args"]["wall_s"] * 1e6, abs=2)


def test_counters(tmp_path: Path) -> None:
    """Peak memory is a counter at the end of each block, I/O a rate while it lasts, 0 after (issue 10)."""
    record(tmp_path, WALLS[:2], workers=1, peaks=[100, 200], reads=1000)
    found, _ = events(tmp_path)
    blocks = [event for event in found if event["ph"] == "X" and event["cat"] == "block"]
    counters = [event for event in found if event["ph"] == "C"]
    memory = [(e["ts"], e["args"]["bytes"]) for e in counters if e["name"].startswith("peak RSS")]
    assert memory == [(b["ts"] + b["dur"], size) for b, size in zip(blocks, (100, 200), strict=True)]
    reads = [(e["ts"], e["args"]["read B/s"]) for e in counters if e["name"].startswith("I/O")]
    assert reads[0] == (blocks[0]["ts"], round(1000 / blocks[0]["dur"] * 1e6))
    assert reads[1] == (blocks[0]["ts"] + blocks[0]["dur"], 0)


def test_text_from_outside_cannot_break_out(folder: Path) -> None:
    """Ids and names with quotes and control codes come back as text, without the codes (R50)."""
    found, _ = events(folder)
    names = {event["name"] for event in found if event["ph"] == "X" and event["cat"] == "step"}
    assert names == {"read", HOSTILE.replace("\x1b", "\\x1b")}
