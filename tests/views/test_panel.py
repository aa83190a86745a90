from __future__ import annotations

from dataclasses import replace

import pytest

from workspan.views.panel import render_panel


class TestGolden:
    def test_processes_with_tracking(self, make, golden):
        """The source document's own example comes out as it stands there, but for a stray space (B160, B161, D48)."""
        stat = make.stat
        records = [
            make.worker(0, idle=stat(4, 48.475e-6, 54.2e-6), compute=stat(4, 0.050555, 4e-5), teardown=0.0231),
            make.worker(1, startup=0.0608, idle=stat(4, 18.825e-6, 12.7e-6), teardown=0.0238),
            make.worker(2, startup=0.0609, idle=stat(4, 10.4e-6, 7.1e-6), teardown=0.0290),
        ]
        records[1] = replace(records[1], compute=stat(4, 0.050525, 4e-5))
        records[2] = replace(records[2], compute=stat(4, 0.0505, 6e-5))
        golden("panel-processes-tracked", render_panel(make.run_report(make.task_report(records=records))))

    def test_processes_without_tracking(self, make, golden):
        """Without tracking the round trip and the workers are shown all the same, and nothing else (B162)."""
        report = make.run_report(make.task_report(blocks=make.UNTRACKED))
        golden("panel-processes-untracked", render_panel(report))

    def test_blocks_that_used_a_gpu(self, make, golden):
        """Where some block has a GPU figure a line shows both; one of them alone leaves a dash for the other (D12)."""
        stat = make.stat
        both = replace(make.TRACKED, gpu_util=stat(9, 63.25, 4.5), gpu_mem=stat(12, 3.5 * 2**30, 2**20))
        memory = replace(make.TRACKED, gpu_mem=stat(12, 2**30))
        reports = make.task_report("seg", blocks=both), make.task_report("slice", blocks=memory)
        golden("panel-gpu", render_panel(make.run_report(*reports)))

    def test_blocks_that_used_none(self, make):
        """Without a measured figure there is no line, and not one of zeros (D12, KF-36)."""
        assert "gpu" not in render_panel(make.run_report(make.task_report()))

    def test_serial_with_tracking(self, make, golden):
        """Serial with tracking prints the block lines that exist and no workers section (B163, B143)."""
        blocks = replace(make.TRACKED, round_trip=make.NOTHING, overhead=None)
        golden("panel-serial-tracked", render_panel(make.run_report(make.task_report(blocks=blocks, records=[]))))

    def test_steps(self, make, golden, steps):
        """Steps are listed under the blocks with share, mean and spread (D48)."""
        golden("panel-steps", render_panel(make.run_report(make.task_report(steps=steps))))

    def test_serial_without_tracking_but_with_steps(self, make, golden, steps):
        """Steps are always in the report, and so in the panel (D42)."""
        blocks = replace(make.UNTRACKED, round_trip=make.NOTHING)
        report = make.task_report(blocks=blocks, records=[], steps=steps)
        golden("panel-serial-steps", render_panel(make.run_report(report)))

    def test_a_resumed_run(self, make, golden):
        """Skipped blocks are told beside the count; the figures are of the executed ones (B161)."""
        blocks = replace(make.TRACKED, count=1728, total=1728, skipped=1716)
        golden("panel-resumed", render_panel(make.run_report(make.task_report(blocks=blocks, wall_seconds=381.4))))

    def test_failures_timeouts_and_an_interrupt(self, make, golden):
        """Every way in which a worker can end is counted, and has no teardown but the clean one (B141, B161)."""
        records = [
            make.worker(0),
            make.worker(1, exit="error", teardown=None, blocks_failed=1, blocks=3),
            make.worker(2, exit="timeout", teardown=None, blocks_failed=1),
            make.worker(3, exit="interrupted", teardown=None),
            make.worker(
                4,
                exit="error",
                startup=None,
                teardown=None,
                blocks=0,
                idle=make.NOTHING,
                compute=make.NOTHING,
                final_wait=None,
            ),
        ]
        blocks = replace(make.UNTRACKED, count=9, failed=1, orphaned=2, failures=4)
        golden("panel-exits", render_panel(make.run_report(make.task_report(blocks=blocks, records=records))))

    def test_abandoned(self, make, golden):
        """A task none of whose workers came up shows that, with nothing measured (B161)."""
        nothing = make.NOTHING
        record = make.worker(
            0, startup=None, blocks=0, idle=nothing, compute=nothing, final_wait=None, teardown=None, exit="error"
        )
        section = make.workers(
            [record], startup=nothing, idle=nothing, compute=nothing, final_wait=nothing, teardown=nothing
        )
        blocks = replace(make.TRACKED, count=0, orphaned=12, round_trip=nothing, trend=0.0)
        blocks = replace(blocks, **dict.fromkeys(("wall", "cpu", "peak_rss", "io_read", "io_write"), nothing))
        report = make.task_report(blocks=replace(blocks, overhead=nothing), workers_section=section)
        golden("panel-abandoned", render_panel(make.run_report(report)))

    def test_more_than_ten_workers(self, make, golden):
        """The table shows the ten lowest ids and points to the rest (B164)."""
        records = [make.worker(n, blocks=1000 + n) for n in reversed(range(14))]
        golden("panel-many-workers", render_panel(make.run_report(make.task_report(records=records))))

    def test_a_terminal_of_80_columns(self, make):
        """Where the table is wider than the terminal, its columns per block give way; elsewhere nothing does (B164)."""
        report = make.run_report(make.task_report(records=[make.worker(0), make.worker(1)]))
        wide = render_panel(report)
        assert max(map(len, wide.splitlines())) > 80
        narrow = render_panel(report, columns=80).splitlines()
        assert max(map(len, narrow)) <= 80
        assert "  id  startup  blocks  idle" in "\n".join(narrow)
        assert "teardown  exit" in "\n".join(narrow)
        assert not any("/ block" in line for line in narrow)
        assert render_panel(report, columns=200) == wide

    def test_several_tasks(self, make, golden, steps):
        """Tasks follow each other in display order; one with nothing to show is left out (B163)."""
        empty = replace(make.UNTRACKED, round_trip=make.NOTHING)
        report = make.run_report(
            make.task_report("smooth", steps=steps),
            make.task_report("quiet", blocks=empty, records=[]),
            make.task_report("classes", blocks=replace(make.UNTRACKED, count=1, total=1), records=[make.worker(3)]),
        )
        golden("panel-several-tasks", render_panel(report))

    def test_ascii(self, make, golden, steps):
        """For a stream without our signs the panel is ASCII, and its columns still stand (R63)."""
        text = render_panel(make.run_report(make.task_report("glättung", steps=steps)), encoding="ascii")
        assert text.isascii()
        golden("panel-ascii", text)


@pytest.fixture
def steps(make):
    """Three steps, one of them short."""
    from workspan.report.parts import StepSummary

    return {
        "read": StepSummary(make.stat(12, 0.0121, 0.0031), 12, 0.241),
        "filter": StepSummary(make.stat(12, 0.0381, 0.0042), 24, 0.757),
        "write out": StepSummary(make.stat(12, 81.2e-6, 12e-6), 12, 0.0016),
    }


WORK = {"work_seconds": 603.0, "work_basis": "wall", "span_seconds": 1.9}


class TestWork:
    """Work, span and parallelism."""

    def test_a_task_that_could_use_more_workers(self, make, golden, steps):
        """Between steps and workers one line says what the blocks cost and what no number of workers saves (D48)."""
        report = replace(make.task_report(steps=steps), **WORK)
        golden("panel-work", render_panel(make.run_report(report)))

    def test_several_tasks_are_summed_up(self, make, golden):
        """A run of several tasks ends with the work and the span of all; a mixed basis is told (D42)."""
        one = replace(make.task_report("smooth"), **WORK)
        two = replace(make.task_report("classes", blocks=make.UNTRACKED), **{**WORK, "work_basis": "round trip"})
        golden("panel-work-of-tasks", render_panel(replace(make.run_report(one, two), span_seconds=3.8)))

    def test_the_hint_needs_room_for_twice_the_workers(self, make):
        """Three workers and a parallelism of 6.0: more can help; of 5.9, or without workers, nothing is promised."""
        report = replace(make.task_report(), work_seconds=6.0, work_basis="wall", span_seconds=1.0)
        assert "parallelism 6.0   (more workers can help)\n" in render_panel(make.run_report(report))
        assert "parallelism 5.9\n" in render_panel(make.run_report(replace(report, work_seconds=5.9)))
        blocks = replace(make.TRACKED, round_trip=make.NOTHING, overhead=None)
        alone = replace(report, blocks=blocks, workers=make.workers([]))
        text = render_panel(replace(make.run_report(alone), span_seconds=1.0))
        assert text.splitlines()[-1] == "  work 6.0 s   span 1.0 s   parallelism 6.0"  # none about all

    @pytest.mark.parametrize(("basis", "told"), [("round trip", "(from round trips)"), ("call", "(from calls)")])
    def test_another_basis_is_told(self, make, basis, told):
        """Without resource tracking the line says from which times it comes (D42)."""
        report = replace(make.task_report(), work_seconds=4.0, work_basis=basis, span_seconds=1.0)
        assert f"  work 4.0 s   span 1.0 s   parallelism 4.0   {told}\n" in render_panel(make.run_report(report))

    def test_what_was_not_measured_is_not_shown(self, make):
        """Without a span there is no line at all: a dash would say nothing, a 0 would be a lie."""
        report = replace(make.task_report(), work_seconds=4.0, work_basis="wall")
        assert "work" not in render_panel(make.run_report(report, report)).replace("worker", "")
        stood = replace(report, work_seconds=0.0, span_seconds=0.0)
        assert "  work 0.0 µs   span 0.0 µs\n" in render_panel(make.run_report(stood))


class TestWhatPrints:
    def test_nothing_to_show_is_no_panel(self, make):
        """If no task has anything to show, not even the heading is printed (B163)."""
        empty = replace(make.UNTRACKED, round_trip=make.NOTHING)
        assert render_panel(make.run_report(make.task_report(blocks=empty, records=[]))) == ""
        assert render_panel(make.run_report()) == ""

    def test_a_task_that_skipped_everything_is_left_out(self, make):
        """A table of zeros would be worse than no table: nothing ran, nothing is shown (B153, B163)."""
        nothing = dict.fromkeys(("round_trip", "wall", "cpu", "peak_rss", "io_read", "io_write"), make.NOTHING)
        blocks = replace(make.TRACKED, skipped=12, trend=0.0, overhead=make.NOTHING, **nothing)
        assert render_panel(make.run_report(make.task_report(blocks=blocks, records=[]))) == ""

    def test_what_the_platform_lacks_is_a_dash(self, make):
        """A counter that was not measured is shown as missing, not as 0 and not as nothing (D22, B161)."""
        blocks = replace(make.TRACKED, peak_rss=None, io_read=None, io_write=None)
        text = render_panel(make.run_report(make.task_report(blocks=blocks)))
        assert "    peak RSS     -\n" in text
        assert "    io           read -   write -\n" in text

    def test_a_trend_needs_two_blocks(self, make):
        """One block has no trend."""
        blocks = replace(make.TRACKED, count=1, wall=make.stat(1, 0.05), trend=0.0)
        assert "    trend        -\n" in render_panel(make.run_report(make.task_report(blocks=blocks)))

    def test_memory_is_a_mean_and_never_a_sum(self, make):
        """Peak RSS of 12 blocks of 25.5 MB reads 25.5 MB; the 306 MB that they add up to appear nowhere (KF-36)."""
        text = render_panel(make.run_report(make.task_report()))
        assert "25.5 MB" in text
        assert "306" not in text

    def test_unmanaged_clients(self, make, golden):
        """Clients from outside are counted; their blocks have a round trip (B142)."""
        section = make.workers([], unmanaged_clients=2)
        alone = make.task_report(blocks=make.UNTRACKED, workers_section=section)
        beside = make.task_report("both", workers_section=make.workers([make.worker(0)], unmanaged_clients=1))
        golden("panel-unmanaged", render_panel(make.run_report(alone, beside)))

    def test_only_the_largest_steps_are_listed(self, make):
        """Of many steps the ten that took most are shown, in their own order, and the rest is pointed to."""
        from workspan.report.parts import StepSummary

        steps = {f"step {n}": StepSummary(make.stat(1, (n * 7 % 23) * 0.01), 1, 0.01) for n in range(23)}
        lines = render_panel(make.run_report(make.task_report(steps=steps))).splitlines()
        shown = [line.strip().split("   ")[0] for line in lines if line.startswith("    step")]
        largest = sorted(steps, key=lambda name: -steps[name].self_seconds.total)[:10]
        assert shown == [name for name in steps if name in largest]
        assert "    the largest 10 of 23; all of them: report.steps" in lines

    def test_hostile_names_cannot_steer_the_terminal(self, make):
        """Task and step names with control codes are shown escaped, on their own line (KF-72, R50)."""
        from workspan.report.parts import StepSummary

        steps = {"x\r\nINFO all done": StepSummary(make.stat(1, 0.1), 1, 1.0)}
        text = render_panel(make.run_report(make.task_report("a\x1b[2Jb\x1b]0;owned\x07", steps=steps)))
        assert "a\\x1b[2Jb\\x1b]0;owned\\x07   12 blocks" in text
        assert "    x\\r\\nINFO all done   100 %" in text
        assert {char for char in text if not char.isprintable()} == {"\n"}

    def test_a_long_step_name_is_cut(self, make):
        """One long name does not push all figures off the screen, and keeps its end, by which names differ."""
        from workspan.report.parts import StepSummary

        steps = {"n" * 300 + " output build": StepSummary(make.stat(1, 0.1), 1, 1.0)}
        lines = render_panel(make.run_report(make.task_report(steps=steps))).splitlines()
        assert max(map(len, lines)) < 140
        assert f"    {'n' * 20}…{'n' * 6} output build   100 %   100.0 ms ± 0.0 ms" in lines

    def test_a_long_task_id_has_its_line(self, make):
        """At a terminal no line about a task is wider than it, however long the id is (issue 10)."""
        report = replace(make.task_report("t" * 100), work_seconds=4.0, span_seconds=0.1, work_basis="round trip")
        lines = render_panel(make.run_report(report), columns=80).splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[2] == "t" * 40 + "…" + "t" * 39
        assert lines[3].startswith("  ")
        assert lines[3].endswith(" wall")
        assert "    (more workers can help)" in lines
