"""Steps inside blocks: their self time is the block's, their measurements are the driver's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import workspan as ws
from workspan.estimate.recorder import ProgressRecorder


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_steps_of_blocks_come_home(recorder: ProgressRecorder, home: Path, logs: Path, engine: Any) -> None:
    """Self times are in the report, (N_ref, dt) in the driver's recorder; workers write no timing file (D43, E31)."""
    from workspan import config

    config.configure(timing={"directory": home})

    def work(block: Any) -> None:
        with ws.WallClockTime("part", N_ref=2.0, order="O_N"), ws.section("in"):
            pass

    task = ws.Task("timed", ws.Roi((0,), (6,)), ws.Roi((0,), (1,)), ws.Roi((0,), (1,)), work, max_workers=2)
    report = ws.run_blockwise(task, engine=engine, return_report=True)
    assert set(report.tasks["timed"].steps) >= {"part", "in"}
    (key,) = recorder._steps
    assert key.step_name == "part"
    measured = recorder.forecast(key).measurements()
    assert [m.N_ref for m in measured] == [2.0] * 6
    assert all(m.dt >= 0 and m.fingerprint is None for m in measured)
    assert len(list(home.glob("fragment_*"))) == 1
