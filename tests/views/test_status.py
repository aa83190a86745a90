from __future__ import annotations

import pytest

from workspan.estimate.remaining import Left
from workspan.views.status import TaskStatus


class TestDetails:
    @pytest.mark.parametrize(
        ("counters", "words"),
        [
            ({"processing": 8, "worker_start": 8}, ["8 workers"]),
            ({"processing": 1, "worker_start": 1}, ["1 worker"]),
            ({"processing": 8, "worker_start": 9, "worker_restart": 1}, ["8 workers", "1 restart"]),
            ({"processing": 2, "skipped": 900}, ["900 skipped"]),
            ({"processing": 2, "failed": 3, "orphaned": 1200}, ["3 failed", "1,200 orphaned"]),
            ({"processing": 2, "timeout_reclaim": 2}, ["2 timeouts"]),
        ],
    )
    def test_what_there_is_to_know(self, make, counters, words):
        """Skips, workers, restarts, timeouts and failures are named; zeros are left out (B167, KF-47)."""
        assert TaskStatus(make.state(total=5000, completed=1000, **counters), 0.0).details == words

    @pytest.mark.parametrize(
        ("counters", "wait"),
        [
            ({"completed": 0, "ready": 12}, "waiting for workers (0 started)"),
            ({"completed": 3, "skipped": 3, "ready": 9, "worker_start": 2}, "waiting for workers (2 started)"),
            ({"completed": 3, "ready": 9, "worker_start": 2, "worker_failure": 2}, "waiting for workers (2 started)"),
            ({"completed": 0}, "waiting for input"),
            ({"completed": 3, "ready": 9, "worker_start": 2}, None),
            ({"completed": 0, "ready": 10, "processing": 2, "worker_start": 2}, None),
            ({"completed": 12}, None),
            ({"completed": 0, "abandoned": True, "orphaned": 12}, None),
        ],
    )
    def test_for_what_it_waits(self, make, counters, wait):
        """A task that does nothing says for what it waits, so that it does not look like a deadlock (KF-57)."""
        found = [word for word in TaskStatus(make.state(total=12, **counters), 0.0).details if "waiting" in word]
        assert found == ([] if wait is None else [wait])


class TestNumbers:
    def test_blocks_and_percent(self, make):
        """Completed and total have separators, the percentage is rounded down (KF-58)."""
        status = TaskStatus(make.state(total=1766, completed=1762, ready=4), 0.0)
        assert (status.numbers, status.percent, status.symbol) == ("1,762/1,766", 99, "▶")

    def test_a_total_that_changes(self, make):
        """Both numbers come from the same counters (KF-58)."""
        status = TaskStatus(make.state(total=1766, completed=30, processing=1), 0.0)
        status.update(make.state(total=36, completed=36), 1.0)
        assert (status.numbers, status.percent) == ("36/36", 100)

    def test_time_left_and_time_taken(self, make):
        """While it runs the time left is shown, when it is done the time that it took, which then stands."""
        status = TaskStatus(make.state(total=4, completed=0, processing=1), 0.0)
        assert status.time == ""
        status.update(make.state(total=4, completed=1, processing=1, left=Left(186.0)), 62.0)
        assert status.time == "3:06 left"
        status.update(make.state(total=4), 250.0)
        status.update(make.state(total=4), 300.0)
        assert (status.time, status.elapsed_seconds) == ("in 4:10", 250.0)

    def test_the_wait_for_input_is_not_counted(self, make):
        """A task that begins after an hour is timed from that moment."""
        status = TaskStatus(make.state(total=10, completed=0), 0.0)
        status.update(make.state(total=10, completed=0), 3600.0)
        status.update(make.state(total=10, completed=1, processing=1), 3601.0)
        assert status.elapsed_seconds == 1.0

    def test_the_start_of_workers_is_counted(self, make):
        """What a run took is what its user waited for, as the report says and the forecast said (D32)."""
        status = TaskStatus(make.state(total=10, completed=0, ready=10), 100.0)
        status.update(make.state(total=10, completed=0, ready=10, worker_start=2), 106.0)
        status.update(make.state(total=10), 108.0)
        assert status.time == "in 0:08"

    def test_a_run_that_ended_early(self, make):
        """When the run is over, nothing is left and nothing is waited for."""
        status = TaskStatus(make.state(total=4, completed=1, ready=3, worker_start=1, worker_failure=1), 0.0)
        status.update(make.state(total=4, completed=2, ready=2, worker_start=1, worker_failure=1), 65.0, final=True)
        assert (status.time, status.details) == ("after 1:05", ["1 worker"])

    def test_a_task_that_was_done_at_once(self, make):
        """All skipped: done in no time, without a division by zero (KF-56)."""
        status = TaskStatus(make.state(total=12, skipped=12), 5.0)
        assert (status.percent, status.time, status.symbol) == (100, "in 0:00", "✔")

    def test_a_hostile_name(self, make):
        """The name cannot steer the terminal (KF-72)."""
        assert TaskStatus(make.state("a\x1b[2J"), 0.0).name == "a\\x1b[2J"
