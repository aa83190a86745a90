from __future__ import annotations

import pytest

from workspan.views.summary import MOST_ERROR_LINES, render_summary, skip_sentence


def summary(*states, order=None, **known) -> str:
    return render_summary({s.task_id: s for s in states}, order or [s.task_id for s in states], **known)


class TestGolden:
    def test_all_done(self, make, golden):
        """A run without trouble is a table in display order and nothing else (B170)."""
        text = summary(make.state("classes", 1), make.state("smooth", 1728), order=["smooth", "classes"])
        golden("summary-done", text)

    def test_nothing_to_do(self, make, golden):
        """A task whose blocks were all done before says so (B153, experience 1)."""
        golden("summary-nothing-to-do", summary(make.state("smooth", 1728, skipped=1728)))

    def test_a_resumed_run(self, make, golden):
        """A task that was resumed tells done, masked and checked blocks apart."""
        text = summary(
            make.state("smooth", 1728, skipped=1204),
            make.state("classify", 1728, skipped=1000),
            make.state("measure", 1728, skipped=1500),
            skips={"classify": {"mask": 1000}, "measure": {"done": 1200, "mask": 250, "check": 50}},
        )
        golden("summary-resumed", text)

    def test_failures(self, make, golden):
        """The first failed block is told in full, the others are counted, and what runs the rest is named (B170)."""
        text = summary(
            make.state("smooth", 1728),
            make.state("classes", 27, 20, failed=5, orphaned=2),
            make.state("measure", 27, 20, failed=1, orphaned=6),
            errors={"classes": [make.failure(), make.failure(error="later")], "measure": [make.failure(error="other")]},
            stores={"smooth": "run/smooth", "classes": "run/classes", "measure": "run/measure"},
            log_dirs={task: f"workspan_logs/{task}" for task in ("smooth", "classes", "measure")},
            command="python job.py",
        )
        golden("summary-failures", text)

    def test_timeouts(self, make, golden):
        """Deadlines that passed are counted with the timeout, whether it is the default, and the remedy (B170)."""
        text = summary(
            make.state("smooth", 12, timeout_reclaim=1, timeout_secs=600.0, worker_start=3, worker_failure=1),
            make.state("slow", 12, 11, failed=1, timeout_reclaim=3, timeout_secs=2.5),
            errors={"slow": [make.failure(cause="timeout", error="not returned within the task's timeout of 2.5 s")]},
            stores={"smooth": "run/smooth", "slow": "run/slow"},
        )
        golden("summary-timeouts", text)

    def test_interrupted(self, make, golden):
        """An interrupt is said first, and what was in flight is neither done nor failed (B170, B71)."""
        text = summary(
            make.state("smooth", 1728, 1204, processing=3, ready=521),
            make.state("classes", 1, 0),
            interrupted=True,
            stores={"smooth": "run/smooth"},
        )
        golden("summary-interrupted", text)

    def test_abandoned(self, make, golden):
        """A task that was given up says why, with the error of its first worker (B170, B62)."""
        text = summary(
            make.state(
                "smooth",
                24,
                12,
                orphaned=12,
                abandoned=True,
                abandon_reason="worker restart cap exhausted",
                worker_start=12,
                worker_failure=12,
                first_worker_error="worker 0: exit code 1\nModuleNotFoundError: No module named 'scpiy'",
                last_worker_error="worker 11: exit code 1",
            ),
            make.state("classes", 1, 0, orphaned=1, abandoned=True, abandon_reason="upstream task abandoned"),
            log_dirs={"smooth": "workspan_logs/smooth"},
        )
        golden("summary-abandoned", text)

    def test_ascii(self, make, golden):
        """For a stream without our signs the summary is ASCII, and its columns still stand (R63)."""
        text = summary(
            make.state("smooth", 1728),
            make.state("classes", 27, 20, failed=5, orphaned=2),
            make.state("measure", 27, 20, orphaned=7),
            make.state("later", 3, 0),
            errors={"classes": [make.failure(error="ValueError: schlüssel")]},
            encoding="ascii",
        )
        assert text.isascii()
        golden("summary-ascii", text)


class TestWhatPrints:
    def test_a_task_without_blocks_is_done(self, make):
        """Nothing to do is done: 0 of 0, without a division by zero (KF-56, B16)."""
        assert "  empty ✔       0          0        0       0         0" in summary(make.state("empty", 0))

    def test_numbers_have_separators(self, make):
        """Millions can be read."""
        assert "1,234,567" in summary(make.state("big", 1_234_567))

    def test_a_failure_without_a_description(self, make):
        """A failed task of which only the count is known is told all the same."""
        text = summary(make.state("seg", 12, 10, failed=2))
        assert "seg: 2 blocks failed\n" in text

    def test_a_block_lost_with_its_worker(self, make):
        """A block whose worker died in the last attempt says so (R5)."""
        error = "worker 2: killed by SIGKILL"
        text = summary(make.state("seg", 12, 11, failed=1), errors={"seg": [make.failure(cause="lost", error=error)]})
        assert "seg: block (3, 0, 1) failed after 3 attempts (its worker died)\n" in text
        assert "    worker 2: killed by SIGKILL\n" in text

    def test_one_axis(self, make):
        """The coordinate of a one-dimensional block can be pasted into ``report.block``."""
        failure = make.failure(cell=(7,), read_begin=(70,), read_shape=(10,), write_begin=(70,), write_shape=(10,))
        text = summary(make.state("seg", 12, 11, failed=1), errors={"seg": [failure]})
        assert "seg: block (7,) failed" in text
        assert "  writes  [70:80]\n" in text

    def test_a_long_error_is_cut_in_the_middle(self, make):
        """Of a long error the beginning and the end are printed, and how much is missing."""
        error = "\n".join(f"line {n}" for n in range(500))
        lines = summary(make.state("seg", 2, 1, failed=1), errors={"seg": [make.failure(error=error)]}).splitlines()
        shown = [line for line in lines if line.startswith("    line")]
        assert len(shown) == MOST_ERROR_LINES
        assert (shown[0], shown[-1]) == ("    line 0", "    line 499")
        assert "    ... 460 lines left out ..." in lines

    def test_replaced_workers_are_told(self, make):
        """Workers that died are visible even though the run completed (reliability contract 6)."""
        state = make.state("seg", worker_start=5, worker_failure=2, first_worker_error="worker 1: killed by SIGKILL\nx")
        text = summary(state, log_dirs={"seg": "logs/seg"})
        assert "seg: 2 of 5 workers failed, the first: worker 1: killed by SIGKILL\n" in text
        assert "logs of seg: logs/seg" in text

    def test_logs_of_tasks_without_trouble_are_not_listed(self, make):
        """Log folders are for those who need them (B170)."""
        assert "logs" not in summary(make.state("seg"), log_dirs={"seg": "logs/seg"})

    @pytest.mark.parametrize(
        ("stores", "told"),
        [
            ({"a": "s/a", "b": "s/b"}, "a rerun does only the 3 missing blocks"),
            ({"b": "s/b"}, "a rerun repeats all blocks of a (no tracking_path)"),
            ({}, "a rerun repeats all blocks of a, b (no tracking_path)"),
        ],
    )
    def test_what_a_rerun_repeats(self, make, stores, told):
        """The advice is true: only tracked tasks skip what they have done (experience 2)."""
        states = make.state("a", 12, 10, failed=2), make.state("b", 12, 11, failed=1), make.state("c", 0)
        assert summary(*states, stores=stores).splitlines()[-1] == told

    def test_hostile_text_cannot_steer_the_terminal(self, make):
        """Control codes in ids, errors, logs and commands are shown escaped, a forged line indented (KF-72, R50)."""
        task = "a\x1b[2Jb\x1b]0;owned\x07"
        failure = make.failure(error="x\r\nINFO all done\x1b[1A", log="l\x1b.err")
        text = summary(
            make.state(
                task, 3, 2, failed=1, skipped=1, timeout_reclaim=1, timeout_secs=1.0,
                worker_start=1, worker_failure=1, first_worker_error="w\x9b1m",
            ),
            make.state("n\ng", 1, 0, orphaned=1, abandoned=True, abandon_reason="r\x07"),
            errors={task: [failure]},
            log_dirs={task: "l\x1b"},
            command="c\x1b[2J",
        )  # fmt: skip
        assert {char for char in text if not char.isprintable()} == {"\n"}
        assert "a\\x1b[2Jb\\x1b]0;owned\\x07: block" in text
        assert "\n    x\\r\n    INFO all done\\x1b[1A\n" in text


class TestSkipSentence:
    @pytest.mark.parametrize(
        ("reasons", "in_flight", "told"),
        [
            ({"done": 12}, 0, "12 of 12 blocks done before, nothing to do"),
            ({"done": 8}, 0, "8 of 12 blocks done before"),
            ({"done": 8}, 3, "8 of 12 blocks done before, 3 were in flight and run again"),
            ({"done": 8}, 1, "8 of 12 blocks done before, 1 was in flight and run again"),
            ({"mask": 12}, 0, "12 of 12 blocks masked, nothing to do"),
            ({"done": 4, "mask": 2, "check": 1}, 0, "4 of 12 blocks done before, 2 masked, 1 found done by the check"),
            ({"done": 0, "mask": 2}, 0, "2 of 12 blocks masked"),
            ({}, 2, "0 of 12 blocks done before, 2 were in flight and run again"),
        ],
    )
    def test_what_is_not_run_and_why(self, reasons, in_flight, told):
        """The sentence at the start of a resumed run, and after it (R24, B171, D25)."""
        sentence = skip_sentence("seg", 12, reasons, in_flight=in_flight)
        assert sentence.removesuffix(" function") == f"seg: {told}"


def test_a_long_task_id_fits_the_terminal(make):
    """At a terminal the table is no wider than it, however long an id is (issue 10)."""
    name = "1 FromItems->" + "x" * 80 + "->Write"
    text = summary(make.state(name, 12, 10, failed=2), errors={name: [make.failure()]}, columns=80)
    assert "a rerun repeats all blocks of" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "  1 FromItems->x" in text
    assert "->Write ✗" in text
    assert name in summary(make.state(name, 12))
