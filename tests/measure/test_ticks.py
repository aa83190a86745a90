from __future__ import annotations

import time

import pytest

from workspan.measure import _ticks_py, ticks


class TestClock:
    def test_is_the_monotonic_clock_of_python(self, sections):
        """Both implementations read the clock of time.monotonic, so that their readings can be compared."""
        before = time.monotonic_ns()
        now = sections.ticks.now_ns()
        assert type(now) is int
        assert before <= now <= time.monotonic_ns()

    def test_never_goes_back(self, sections):
        """A later reading is never smaller."""
        readings = [sections.ticks.now_ns() for _ in range(1000)]
        assert readings == sorted(readings)


class TestTwins:
    def test_have_the_same_names(self, sections):
        """What one implementation offers to sections, the other does too."""
        for name in _ticks_py.__all__:
            assert hasattr(sections.ticks, name)

    def test_measure_a_piece_of_real_time_exactly(self, sections):
        """A section's time lies between readings of the clock taken just inside and just outside of it."""
        with sections.collect() as collected:
            before = time.monotonic_ns()
            with sections.section("sleep"):
                began = time.monotonic_ns()
                time.sleep(0.01)
                ended = time.monotonic_ns()
            after = time.monotonic_ns()
        assert ended - began <= collected.root.children[0].self_ns <= after - before


class TestChoice:
    SCRIPT = """
        from workspan.measure import ticks, sections
        print(json.dumps([ticks.NATIVE, ticks.Section.__module__, sections.section is ticks.Section]))
    """

    @pytest.mark.parametrize("value", ["1", "yes"])
    def test_the_twin_can_be_forced(self, fresh, monkeypatch, value):
        """WORKSPAN_PURE_PYTHON=1 selects the pure-Python twin whether or not the native module is there."""
        monkeypatch.setenv("WORKSPAN_PURE_PYTHON", value)
        assert fresh(self.SCRIPT) == [False, "workspan.measure._ticks_py", True]

    @pytest.mark.parametrize("value", ["", "0"])
    def test_the_native_module_is_used_where_it_is_built(self, fresh, monkeypatch, value):
        """Without the switch the compiled module is taken."""
        pytest.importorskip("workspan.measure._ticks", reason="the native module is not built")
        monkeypatch.setenv("WORKSPAN_PURE_PYTHON", value)
        assert fresh(self.SCRIPT) == [True, "workspan.measure._ticks", True]

    def test_the_twin_is_used_where_it_is_not(self, fresh, monkeypatch):
        """An installation without the compiled module works, without a word."""
        monkeypatch.setenv("WORKSPAN_PURE_PYTHON", "0")
        script = 'sys.modules["workspan.measure._ticks"] = None\n'
        # The prelude has imported the room already: start again without it.
        forget = '[sys.modules.pop(name) for name in list(sys.modules) if name.startswith("workspan.measure")]\n'
        body = "\n".join(line.strip() for line in self.SCRIPT.strip().splitlines())
        assert fresh(forget + script + body) == [False, "workspan.measure._ticks_py", True]

    def test_says_what_it_chose(self):
        """NATIVE is true exactly if the compiled module is in use."""
        assert (ticks.implementation.__name__ == "workspan.measure._ticks") == ticks.NATIVE


class TestPushEach:
    def test_is_a_push_into_each(self, sections):
        """B145: many figures at once are what each by itself would be; None and NaN are no samples."""
        made = sections.ticks
        together, alone = (tuple(made.Moments() for _ in range(3)) for _ in range(2))
        for number in range(20):
            samples = (number, None if number % 3 else 0.1 * number, float("nan") if number % 2 else 1e9 + number)
            made.push_each(together, samples)
            for fold, sample in zip(alone, samples, strict=True):
                fold.push(sample)
        assert [fold.n for fold in together] == [20, 7, 10]
        assert [fold.figures() for fold in together] == [fold.figures() for fold in alone]

    def test_takes_subclasses(self, sections):
        """The folds of reports are a subclass."""
        fold = type("Fold", (sections.ticks.Moments,), {})()
        sections.ticks.push_each((fold,), (2.0,))
        assert fold.n == 1

    def test_each_fold_has_a_sample(self, sections):
        """Figures that would end up in the wrong fold are refused, and none is taken in."""
        fold = sections.ticks.Moments()
        with pytest.raises(ValueError, match="2 samples for 1 folds"):
            sections.ticks.push_each((fold,), (1.0, 2.0))
        assert fold.n == 0
