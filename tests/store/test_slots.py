"""Which blocks were in flight at a kill."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from workspan.grid import Layout
from workspan.store.hash import layout_hash
from workspan.store.lock import beside
from workspan.store.slots import CAPACITY, InFlight, SlotFile, read_slots
from workspan.store.tracking import TrackingStore

DIGEST = "ab" * 32


@pytest.fixture(params=[True, False], ids=["map", "pwrite"])
def mapped(request: pytest.FixtureRequest) -> bool:
    return request.param


def test_what_was_granted_and_not_done_is_told_at_the_next_start(tmp_path: Path, row: Layout, run_script) -> None:
    """Of blocks granted, done, failed, given back and granted again, the killed run leaves the right ones (D25)."""
    code = """
        import sys
        from workspan.grid import Layout
        from workspan.store.tracking import TrackingStore
        layout = Layout((0,), (100,), (0,), (10,), (0,), (10,))
        store = TrackingStore.open(sys.argv[1], layout)
        for index in range(8):
            store.grant(index, index % 2 if index else None)
        store.record_done(1, None, 1, 1.0, 2.0)
        store.record_failure(2)
        store.ungrant(3)
        store.record_failure(4)
        store.grant(4, 5)
        store.grant(8, 0)
        store.record_done(8, None, 0, 1.0, 2.0)
        print("ready", flush=True)
        sys.stdin.read()
    """
    process = run_script(code, tmp_path / "seg")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    with TrackingStore.open(tmp_path / "seg", row) as store:
        assert store.was_in_flight == tuple(InFlight(*pair) for pair in ((0, None), (4, 5), (5, 1), (6, 0), (7, 1)))
    with TrackingStore.open(tmp_path / "seg", row) as store:
        assert store.was_in_flight == ()


def test_a_slot_file_has_its_size_and_is_made_in_one_step(tmp_path: Path, mapped: bool) -> None:
    """8 KiB and a head, whatever is in flight; nothing else is left (D25)."""
    slots = SlotFile(tmp_path / "a.slots", DIGEST, mapped=mapped)
    for index in range(2000):
        slots.grant(index, 2**24 + index)
    assert (tmp_path / "a.slots").stat().st_size == 32 + 8 * CAPACITY
    assert len(read_slots(tmp_path / "a.slots", DIGEST)) == CAPACITY
    slots.close(remove=False)
    slots.close(remove=True)
    assert os.listdir(tmp_path) == []


def test_slots_are_used_again(tmp_path: Path, mapped: bool) -> None:
    """A run of any length needs as many slots as are in flight at once (D25)."""
    slots = SlotFile(tmp_path / "a.slots", DIGEST, mapped=mapped)
    slots.grant(10**9, 7)
    for index in range(10 * CAPACITY):
        slots.grant(index, 0)
        slots.release(index)
        slots.release(index)  # a late answer
        slots.strike(index)
    left = read_slots(tmp_path / "a.slots", DIGEST)
    assert InFlight(10**9, 7) in left
    assert len(left) == 2  # the other one is done, which the store knows
    slots.strike(10**9)
    assert InFlight(10**9, 7) not in read_slots(tmp_path / "a.slots", DIGEST)
    slots.close(remove=True)


@pytest.mark.parametrize("content", [b"", b"x" * 100, bytes(32 + 8 * CAPACITY), None])
def test_a_file_that_is_no_slot_file_tells_nothing(tmp_path: Path, content: bytes | None) -> None:
    """Garbage, files of other layouts and missing ones say that nothing was in flight."""
    path = tmp_path / "a.slots"
    if content is not None:
        path.write_bytes(content)
    assert read_slots(path, DIGEST) == []


def test_slots_of_another_layout_or_a_deleted_store_are_dropped(tmp_path: Path, row: Layout, make_layout) -> None:
    """Indices mean nothing without the layout and the flags they belong to (KF-17)."""
    path = beside(tmp_path / "seg", ".slots")
    path.parent.mkdir()
    slots = SlotFile(path, layout_hash(row), mapped=False)
    slots.grant(3, 0)
    slots.close(remove=False)
    assert read_slots(path, layout_hash(make_layout(blocks=20))) == []
    with TrackingStore.open(tmp_path / "seg", row) as store:  # there was a slot file, but no store
        assert store.was_in_flight == ()
