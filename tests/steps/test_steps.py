"""The list of steps and its rewrites."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from operator import methodcaller
from typing import Any

import pytest

from helpers.step_kit import Clock, step, steps, working
from workspan import Chain, Phase, Step
from workspan.errors import ConfigurationError, UsageTypeError
from workspan.measure import timers
from workspan.steps import explain, fold, identity, rewrite, without_identities


def stage(number: int, body: Any = identity, *, user: bool = True) -> list[Step]:
    """Return the three steps of a stage."""
    names = [(Phase.INPUT_PREP, identity), (Phase.FUNCTION_BODY, body), (Phase.OUTPUT_BUILD, identity)]
    name = f"Map(f{number})"
    return [Step(f"{name} {p.value}", p, number, a, user=user and a is body, ops=[name]) for p, a in names]


class TestStep:
    def test_is_an_immutable_record_that_works_untimed(self):
        """It holds no timing state and composes by plain calls (M1)."""
        double = step(lambda items: (2 * item for item in items))
        assert list(double.apply(double.apply([1, 2]))) == [4, 8]
        with pytest.raises(FrozenInstanceError):
            double.label = "other"  # type: ignore[misc]
        assert (double.user, double.ops) == (False, ())

    def test_can_be_pickled(self):
        """Steps travel; what is timed stays (M95)."""
        made = Step("Map(f) body", Phase.FUNCTION_BODY, 0, methodcaller("__iter__"), user=True, ops=["Map(f)"])
        copy = pickle.loads(pickle.dumps(made))
        assert (copy.label, copy.bucket, copy.stage, copy.user, copy.ops) == (
            "Map(f) body",
            Phase.FUNCTION_BODY,
            0,
            True,
            ("Map(f)",),
        )

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ((1, None, 0, iter), UsageTypeError, "not int"),
            (("a", "body", 0, iter), UsageTypeError, "'body'"),
            (("a", None, "0", iter), UsageTypeError, "stage='0'"),
            (("a", None, True, iter), UsageTypeError, "stage=True"),
            (("a", None, -1, iter), ConfigurationError, "stage=-1"),
            (("a", None, 0, [1]), UsageTypeError, r"apply=\[1\]"),
        ],
    )
    def test_wrong_arguments_are_refused(self, arguments, error, message):
        """Each by its name and value (M1)."""
        with pytest.raises(error, match=message):
            Step(*arguments)

    def test_one_name_is_no_list_of_names(self):
        """Text as ops would be taken letter by letter."""
        with pytest.raises(UsageTypeError, match=r"ops=\('Map',\)"):
            Step("a", None, 0, iter, ops="Map")


class TestRewrites:
    def test_a_stage_folds_into_one_step(self):
        """Label, bucket none, same stage and user flag; the other stages stay as they are (M31)."""
        folded = fold([*stage(0, user=False), *stage(1)], [1])
        assert [(s.label, s.bucket, s.stage, s.user, s.ops) for s in folded[3:]] == [
            ("Map(f1) stage", None, 1, True, ("Map(f1)",))
        ]
        assert folded[:3] == stage(0, user=False)
        assert fold(folded, [1]) == folded
        assert [s.label for s in fold([*stage(0), *stage(1)], [0, 1])] == ["Map(f0) stage", "Map(f1) stage"]

    def test_a_folded_chain_gives_the_same_data_in_the_same_order(self):
        """The timing changes neither the data nor the order of the user's calls (M32, M106)."""
        results = []
        for timing in ("auto", "phases", "stages", "total", "off"):
            called: list[Any] = []

            def body(items: Any, called: list[Any] = called) -> Any:
                for item in items:
                    called.append(item)
                    yield item + 1

            chain = Chain([*stage(0, body), *stage(1, body)], timing=timing, rows=[1])
            results.append((list(chain.run(range(3))), called))
        assert results[0] == ([2, 3, 4], [0, 1, 1, 2, 2, 3])
        assert all(result == results[0] for result in results)

    def test_total_is_one_step_without_stages(self):
        """In mode total the stages are not measured; the total is (M31, M37)."""
        clock = Clock()
        fetch = step(identity, 0, bucket=Phase.INPUT_FETCH, label="fetch")
        chain = Chain([fetch, *stage(0, working(clock, 5)), *stage(1)], timing="total", clock=clock)
        assert [s.label for s in chain.steps] == ["fetch", "Map(f0)->Map(f1)"]
        assert list(chain.run(range(2))) == [0, 1]
        times = chain.drain()
        assert (times.total_ns, times.stage_s, times.function_body_s, times.user_s) == (10, None, None, None)

    @pytest.mark.parametrize("native", [True, False])
    def test_auto_folds_row_stages_only_without_the_native_timer(self, monkeypatch, native):
        """Row chains are split by default with the native timer and folded with the twin (D7, M31, M98)."""
        monkeypatch.setattr(timers, "NATIVE", native)
        found = rewrite([*stage(0), *stage(1)], "auto", rows=[1])
        assert len(found) == (6 if native else 4)

    def test_an_unknown_timing_is_refused(self):
        """The message has the value and those that there are (M31)."""
        with pytest.raises(ConfigurationError, match=r"timing='fast'.*phases"):
            rewrite([], "fast")  # type: ignore[arg-type]

    def test_what_is_no_list_of_steps_is_refused(self):
        """A chain is checked when it is made, with the value in the message."""
        for made, message in ((step(iter), "put it in a list"), ([1], "not of int: 1"), (None, "not of one NoneType")):
            with pytest.raises(UsageTypeError, match=message):
                Chain(made)  # type: ignore[arg-type]
        with pytest.raises(UsageTypeError, match=r"rows=1: .* rows=\[0\]"):
            Chain([], rows=1)  # type: ignore[arg-type]
        assert repr(Chain(stage(0))) == "Chain(Map(f0) input prep -> Map(f0) body -> Map(f0) output build)"

    def test_identity_steps_can_be_dropped(self):
        """What does nothing needs no timer (D51)."""
        assert [s.label for s in without_identities([*stage(0, iter), *stage(1, iter)])] == [
            "Map(f0) body",
            "Map(f1) body",
        ]


class TestTables:
    def test_explain_prints_the_list_before_it_runs(self):
        """Index, stage, phase, whose code, label (M2, M102)."""
        ran: list[int] = []
        chain = Chain([*stage(0, ran.extend), step(iter, 1, bucket=None, label="Filter(g) stage")])
        assert chain.explain().splitlines() == [
            "#  stage  phase         code      step",
            "0      0  input prep    built-in  Map(f0) input prep",
            "1      0  body          user      Map(f0) body",
            "2      0  output build  built-in  Map(f0) output build",
            "3      1  all           built-in  Filter(g) stage",
        ]
        assert ran == []

    def test_explain_says_why_stages_are_folded(self, monkeypatch):
        """Without the native timer stages of rows are folded, and the table says so, after pickling too (M98, D7)."""
        monkeypatch.setattr(timers, "NATIVE", False)
        made = stage(0, iter)
        for chain in (folded := Chain(made, rows=[0]), pickle.loads(pickle.dumps(Chain([step(identity)], rows=[0])))):
            assert "without the native timer" in chain.explain()
        assert len(folded.steps) == 1
        for chain in (Chain(made, rows=[]), Chain(made, rows=[0], timing="stages"), Chain(made, timing="phases")):
            assert "native" not in chain.explain()
        assert Chain(made, timing="off").explain().endswith("timing is off")

    def test_long_labels_are_cut_for_display_only(self):
        """The record keeps the whole label (M44)."""
        made = step(iter, label="x" * 100)
        assert "x" * 45 + "..." in explain([made])
        chain = Chain([made])
        list(chain.run([1]))
        assert chain.drain().steps[0].step.label == "x" * 100

    def test_table_shows_all_that_was_measured(self):
        """After drains too; what was not measured has no line (M41, M80)."""
        clock = Clock()
        chain = Chain(steps(working(clock, 1_500_000_000)), clock=clock)
        for _ in chain.run(range(2)):
            chain.drain()
        table = chain.table()
        assert "f0 body  3.00 s  100 %      2  1.50 s  1.50 s" in table
        assert "transform time 3.00 s" in table
        assert "function body  3.00 s" in table
        assert "clamped" not in table
        assert "input fetch" not in table
        folded = Chain(steps(working(clock, 5)), timing="stages", clock=clock)
        list(folded.run([1]))
        assert "function body" not in folded.table()

    def test_table_of_nothing_says_so(self):
        """Before a run, and with timing off."""
        assert Chain([]).table() == "no step was timed"
        off = Chain(steps(iter), timing="off")
        list(off.run([1]))
        assert off.table() == "timing is off"


class TestChain:
    def test_can_be_pickled_before_and_after_a_run(self):
        """The copy has the steps, as rewritten, and has not run (M95)."""
        chain = Chain([Step("a", Phase.FUNCTION_BODY, 0, identity)], timing="stages")
        list(chain.run([1]))
        copy = pickle.loads(pickle.dumps(chain))
        assert [s.label for s in copy.steps] == ["a stage"] == [s.label for s in chain.steps]
        assert copy.drain().total_s == 0.0
        assert list(copy.run([1, 2])) == [1, 2]

    def test_works_on_any_iterable(self):
        """Lists, generators, files of lines, iterables by index: no blocks, no executor (M107)."""

        class ByIndex:
            def __getitem__(self, index: int) -> int:
                return [1, 2][index]

        chain = Chain(steps(iter, iter))
        for items in ([1, 2], (n for n in (1, 2)), ByIndex(), {1: 0, 2: 0}):
            assert list(chain.run(items)) == [1, 2]
            assert chain.drain().steps[1].items == 2
