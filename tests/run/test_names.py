"""The public names of runs: what they are called, what they return, and what is not offered."""

from __future__ import annotations

import inspect
import logging
import threading
from pathlib import Path
from typing import Any

import funlib.geometry
import pytest

import workspan as ws
from helpers.runs import line, run
from workspan import errors


def nothing(block: ws.Block) -> None:
    """Do nothing."""


def test_geometry_is_that_of_funlib() -> None:
    """`Roi` and `Coordinate` are the classes that the field uses, not look-alikes (D10, B1)."""
    assert ws.Roi is funlib.geometry.Roi
    assert ws.Coordinate is funlib.geometry.Coordinate


def test_a_task_runs_itself() -> None:
    """`task.run_blockwise(...)`, or short `task.run(...)`, is `run_blockwise(task, ...)` (B53)."""
    task = line(3, nothing)
    report = task.run_blockwise(engine="serial", progress=False, summary=False, return_report=True)
    assert (bool(report), report["t"].blocks.count) == (True, 3)
    assert task.run(engine="serial", progress=False, summary=False) is True
    assert task.report().run_id != report.run_id


def test_a_pipeline_is_made_of_tasks_and_edges(tmp_path: Path) -> None:
    """Its parts can be asked for, `from_task` follows what a task waits for; it is run and reset as a whole (B54)."""
    first, second, alone = (
        line(2, nothing, name, tracking_path=tmp_path / name) for name in ("first", "second", "alone")
    )
    pipeline = ws.Pipeline([first, second, alone], [(first, second)])
    assert (pipeline.tasks, pipeline.edges) == ([first, second, alone], [(first, second)])
    assert (pipeline.sources, pipeline.outputs) == ([first, alone], [second, alone])
    second.upstream_tasks.append(first)
    followed = ws.Pipeline.from_task(second)
    assert ({task.task_id for task in followed.tasks}, followed.edges) == ({"first", "second"}, [(first, second)])
    assert pipeline.run_blockwise(engine="serial", progress=False, summary=False) is True
    assert {path.name for path in pipeline.reset()} == {"first", "second", "alone"}
    assert run(pipeline)["alone"].blocks.count == 2  # forgotten, so it ran again
    with pytest.raises(errors.ConfigurationError, match="not among the tasks"):
        ws.Pipeline([first], [(first, second)])


@pytest.mark.parametrize(
    ("kind", "bases"),
    [
        (errors.ConfigurationError, (RuntimeError, ValueError)),
        (errors.TrackingError, (errors.ConfigurationError,)),
        (errors.LayoutMismatchError, (errors.TrackingError,)),
        (errors.InvalidMetadataError, (errors.TrackingError,)),
        (errors.AbandonedError, (RuntimeError,)),
    ],
)
def test_errors_are_what_a_caller_would_catch(kind: type[Exception], bases: tuple[type, ...]) -> None:
    """Each is the builtin that daisy's callers catch, and a WorkspanError (B64, D50)."""
    assert issubclass(kind, (errors.WorkspanError,))
    assert all(issubclass(kind, base) for base in bases)


def test_a_server_has_an_address_while_it_runs() -> None:
    """Host and port are there during a run and at no other time; report and order stay; a set event ends it (B67)."""
    stop = threading.Event()
    server = ws.Server(stop, "127.0.0.1")
    seen: list[Any] = []

    def look(context: ws.Context) -> None:
        seen.append((server.hostname, server.port))

    first, second = line(2, nothing, "first", init_callback_fn=look), line(2, nothing, "second")
    states = server.run_blockwise(first + second, progress=False, summary=False)
    ((host, port),) = seen
    assert (host, port > 0) == ("127.0.0.1", True)
    assert (server.hostname, server.port) == (None, None)
    assert [state.completed_count for state in states.values()] == [2, 2]
    assert server.last_task_order == list(states) == ["first", "second"]
    assert server.last_report is not None
    assert server.last_report.outcome == "completed"
    stop.set()
    states = server.run_blockwise(line(2, nothing), progress=False, summary=False)
    assert (states["t"].completed_count, server.last_report.outcome) == (0, "interrupted")


def test_without_tracking_no_store_is_touched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`block_tracking=False` opens and writes none, and says once that nothing is measured then (B68)."""
    task = line(2, nothing, tracking_path=tmp_path / "store", resource_tracking=True)
    with caplog.at_level(logging.WARNING, logger="workspan"):
        report = run(task, block_tracking=False)
    assert report["t"].blocks.count == 2
    assert not (tmp_path / "store").exists()
    assert report["t"].blocks.wall is None or report["t"].blocks.wall.n == 0
    assert len([record for record in caplog.records if "resource" in record.getMessage()]) == 1


def test_workers_are_numbered_over_all_tasks() -> None:
    """Ids go from 0 on in the order of their start, whichever task they work for (B76)."""
    report = run(line(2, nothing, "first", max_workers=1) + line(2, nothing, "second", max_workers=1), "processes")
    ids = {name: [record.id for record in report[name].workers.records] for name in ("first", "second")}
    assert ids == {"first": [0], "second": [1]}


@pytest.mark.parametrize(
    "name",
    [
        "persistence",
        "Array",
        "open_ds",
        "prepare_ds",
        "messages",
        "tcp",
        "build_run_stats",
        "WorkerStats",
        "ProcessStats",
    ],
)
def test_what_is_not_offered(name: str) -> None:
    """Arrays, messages and statistics of single processes are not among the names (B172)."""
    assert not hasattr(ws, name)
    assert not hasattr(ws.Server(), "last_run_stats")


def test_positional_arguments_of_a_task_are_those_of_daisy_2() -> None:
    """Their order is daisy 2's, and `requires` is a dict (B173)."""
    wanted = [
        "task_id",
        "total_roi",
        "read_roi",
        "write_roi",
        "process_function",
        "check_function",
        "read_write_conflict",
    ]
    assert list(inspect.signature(ws.Task).parameters)[: len(wanted) + 1] == [*wanted, "fit"]
    assert line(1, nothing).requires == {}
    assert line(1, nothing, requires={"gpu": 1}).requires == {"gpu": 1}
