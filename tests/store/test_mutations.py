"""A store with anything at all done to it: it opens with what is really done, or is refused by name."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from helpers.repairs import announced_repair
from workspan.errors import InvalidMetadataError, LayoutMismatchError, TrackingError, WorkspanError
from workspan.grid import Layout
from workspan.measure.profile import BlockStats
from workspan.store.tracking import TrackingStore

pytestmark = pytest.mark.once

EXAMPLES = 10_000 if os.environ.get("WORKSPAN_FULL") == "1" else 300
LAYOUT = Layout((-5, 0), (63, 45), (0, 0), (23, 14), (12, 2), (10, 10), "valid", True)
SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 300) | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["uint8", "uint64", "float32", "array", "group", "big", "little", "/", ".", "valid", "shrink"])
)  # fmt: skip
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=4), SCALARS, max_size=2)
BYTES = st.binary(max_size=300) | st.lists(st.sampled_from([0, 1]), max_size=60).map(bytes)


def build(path: Path) -> None:
    """A store with all there is: done, failed, skipped and open blocks, and two sections."""
    with TrackingStore.open(path, LAYOUT, resource_tracking=True, task_id="seg", function="f") as store:
        for index in range(0, LAYOUT.num_blocks, 2):
            stats = BlockStats(0.5, 0.25, None if index == 4 else 7, 11, 22)
            store.record_done(index, stats, 1, 1000.0 + index, 1001.0 + index, {"read": (0.5, 1), "Write it": (0.1, 1)})
        store.record_failure(3)
        store.mark_done(5)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of such a store, path -> content."""
    path = tmp_path_factory.mktemp("template") / "seg"
    build(path)
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def json_paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, child in children for path in json_paths(child, (*here, key)))]


@dataclass(frozen=True)
class Change:
    """Something done to a file; all is drawn beforehand, and means something for any file."""

    file: int
    kind: str
    at: int
    data: bytes
    value: Any
    delete: bool

    def of(self, files: dict[str, bytes]) -> tuple[str, bytes | str | None]:
        """Return path and new content; ``None``: deleted, ``"folder"``: a folder in its place."""
        path = sorted(files)[self.file % len(files)]
        content = files[path]
        if self.kind == "json" and path.endswith(".json"):
            return path, self._json(content)
        if self.kind == "cut":
            return path, content[: self.at % len(content)]
        if self.kind == "grow":
            return path, content + (self.data or b"?")
        if self.kind == "replace":
            return path, self.data
        if self.kind == "other":
            return path, files[sorted(files)[self.at % len(files)]]
        if self.kind in ("delete", "folder"):
            return path, None if self.kind == "delete" else "folder"
        changed = bytearray(content)
        for number, byte in enumerate(self.data[:4] or b"\xff"):
            changed[(self.at + number * 997) % len(changed)] = byte
        return path, bytes(changed)

    def _json(self, content: bytes) -> bytes:
        node = json.loads(content)
        node.pop("consolidated_metadata", None)  # most of the bytes, and read by nobody here
        paths = json_paths(node)
        *heads, last = paths[self.at % len(paths)] or (None,)
        if last is None:
            return json.dumps(self.value).encode()
        inner = node
        for key in heads:
            inner = inner[key]
        if self.delete and isinstance(inner, dict):
            del inner[last]
        else:
            inner[last] = self.value
        return json.dumps(node).encode()


KINDS = ["flip", "cut", "grow", "replace", "other", "delete", "folder", "json", "json"]
CHANGES = st.lists(
    st.builds(
        Change,
        file=st.integers(0, 10_000),
        kind=st.sampled_from(KINDS),
        at=st.integers(0, 10_000),
        data=BYTES,
        value=VALUES,
        delete=st.booleans(),
    ),
    min_size=1,
    max_size=2,
)


def restore(path: Path, files: dict[str, bytes]) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)
    for part, content in files.items():
        (path / part).parent.mkdir(parents=True, exist_ok=True)
        (path / part).write_bytes(content)


def apply(path: Path, part: str, content: bytes | str | None) -> None:
    (path / part).unlink()
    if content == "folder":
        (path / part).mkdir()
    elif isinstance(content, bytes):
        (path / part).write_bytes(content)


def take_back(path: Path, part: str, content: bytes) -> None:
    if (path / part).is_dir():
        (path / part).rmdir()
    (path / part).write_bytes(content)


def flags_on_disk(path: Path) -> np.ndarray:
    """What the file of ``done`` says, where it is as long as it must be; else nothing is done."""
    chunk = path / "done" / "c" / "0" / "0"
    count = int(np.prod(LAYOUT.cell_counts))
    if not chunk.is_file():
        return np.zeros(count, np.uint8)
    cells = np.fromfile(chunk, np.uint8)[:count]
    return np.concatenate([cells, np.zeros(count - len(cells), np.uint8)])


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of stores are made in it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as path:
        yield Path(path)


@pytest.mark.timeout(600)
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(changes=CHANGES)
def test_garbage_never_counts_as_done(template: dict[str, bytes], folder: Path, changes: list[Change]) -> None:
    """Whatever is done to one or two files: refused with the part named, or open with the true flags (R28, D23)."""
    drawn = dict(change.of(template) for change in changes)
    path = folder / "tracking" / "seg"
    if not path.exists():
        restore(path, template)
    for part, content in drawn.items():
        apply(path, part, content)
    flags = flags_on_disk(path)
    try:
        store = TrackingStore.open(path, LAYOUT, resource_tracking=True)
    except TrackingError as error:
        told = str(error)
    else:
        event("opened")
        store.close()
        shutil.rmtree(path)
        assert set(flags.tolist()) <= {0, 1}
        assert store.done.reshape(-1).tolist() == flags.tolist()
        return
    event("refused")
    assert flags_on_disk(path).tolist() == flags.tolist()
    for part in drawn:
        take_back(path, part, template[part])
    assert names_one_of(told, set(drawn)), (told, drawn.keys())


@pytest.mark.timeout(600)
@settings(max_examples=EXAMPLES // 10, suppress_health_check=list(HealthCheck))
@given(changes=CHANGES)
def test_a_repaired_store_opens(template: dict[str, bytes], folder: Path, changes: list[Change]) -> None:
    """After a repair, which a dry run announced, no block is done that was not, and the store can be used (R28)."""
    drawn = dict(change.of(template) for change in changes)
    path = folder / "repaired" / "seg"
    restore(path, template)
    for part, content in drawn.items():
        apply(path, part, content)
    flags = flags_on_disk(path)
    with suppress(WorkspanError):
        TrackingStore.peek(path).table()
    try:
        announced_repair(path)
        store = TrackingStore.open(path, LAYOUT, resource_tracking=True)
    except (InvalidMetadataError, LayoutMismatchError):
        beyond = True
    else:
        beyond = False
    if beyond:
        event("beyond repair")
        assert "zarr.json" in drawn
        return
    with store:
        assert not ((store.done.reshape(-1) == 1) & (flags != 1)).any()
        records = list(store.block_records())
        assert {r.coord for r in records if r.done} == set(zip(*map(list, np.nonzero(store.done)), strict=True))
        store.record_done(1, BlockStats(3.0), 0, 5000.0, 5001.0, {"read": (0.5, 1), "new": (1.0, 1)})
        assert store.block(LAYOUT.cell(1)).steps == {"read": 0.5, "new": 1.0}


def names_one_of(refusal: str, parts: set[str]) -> bool:
    names = {part.split("/c/")[0].removesuffix("/zarr.json") for part in parts}
    if names & {"done", "sent_at", "returned_at"}:
        names |= {"returned_at", "zarr.json"}  # which of the three is wrong cannot be told
    if "zarr.json" in names:
        names.add("daisy_task_hash")  # the refusal tells of the layout, not of the file
    if any(name.startswith("steps/") for name in names):
        names.add("steps/")  # of two sections with one name either may be the wrong one
    return "tracking/seg" in refusal and any(name in refusal for name in names)


@settings(max_examples=EXAMPLES // 10, suppress_health_check=list(HealthCheck))
@given(changes=CHANGES)
def test_a_callers_own_group_is_no_exception(template: dict[str, bytes], folder: Path, changes: list[Change]) -> None:
    """Groups without hash are trusted by format only, and their arrays are checked all the same (B116, B117)."""
    part, content = changes[0].of({k: v for k, v in template.items() if k != "zarr.json"})
    path = folder / "own" / "seg"
    restore(path, template)
    (path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    apply(path, part, content)
    flags = flags_on_disk(path)
    try:
        store = TrackingStore.open(path, LAYOUT, resource_tracking=True)
    except TrackingError as error:
        told = str(error)
    else:
        with store:
            if (path / "done" / "c" / "0" / "0").stat().st_size == len(flags):
                assert not ((store.done.reshape(-1) == 1) & (flags != 1)).any()
            assert store.done.max() <= 1
        return
    assert names_one_of(told.replace(str(path), "tracking/seg"), {part})
