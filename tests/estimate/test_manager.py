"""``WallClockTime`` in all its forms, and what it refuses."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workspan import config
from workspan.errors import UsageError
from workspan.estimate import WallClockTime, time_subclasses
from workspan.estimate.activation import current, stack
from workspan.estimate.recorder import ProgressRecorder

Advance = Any
M = __name__


def key(function: Any, name: str | None = None) -> tuple[str | None, ...]:
    """Key of a function of this module."""
    return (M, function.__qualname__, name)


def times(recorder: ProgressRecorder, which: Any, variant: str | None = None) -> list[float]:
    """Measured seconds of a step."""
    return [round(m.dt, 9) for m in recorder.forecast(which, variant=variant).measurements()]


@WallClockTime(N_ref=lambda x, **_: x, order="O_N")
def module_level(x: int, *, y: int = 2) -> int:
    """Double it."""
    return x * y


def test_all_forms_record(recorder: ProgressRecorder, clock: Any) -> None:
    """Bare, with arguments, on a class, ``with`` and ``async with``, each under its key (E2, E3, E4, E12, E34)."""

    @WallClockTime
    def bare() -> None:
        clock.work(1)

    @WallClockTime("named", N_ref=3)
    def named() -> None:
        clock.work(2)

    @WallClockTime(method="cook", N_ref=lambda self, n: n)
    class Recipe:
        def cook(self, n: int) -> None:
            clock.work(n)

    def sections() -> None:
        with WallClockTime("part", N_ref=lambda a, b=0: a + b, N_ref_args=((1,), {"b": 2})) as handle:
            clock.work(4)
            assert (handle.N_ref, handle.key) == (3.0, key(sections, "part"))

    async def asynchronous() -> None:
        async with WallClockTime("part"):
            clock.work(5)

    bare()
    named()
    Recipe().cook(3)
    sections()
    asyncio.run(asynchronous())
    assert times(recorder, key(bare)) == [1]
    assert times(recorder, key(named, "named")) == [2]
    assert times(recorder, (M, Recipe.__qualname__, None)) == [3]
    assert times(recorder, key(sections, "part")) == [4]
    assert times(recorder, key(asynchronous, "part")) == [5]


def test_a_helper_names_its_caller(recorder: ProgressRecorder) -> None:
    """stacklevel counts frames, as for warnings (E4)."""

    def helper() -> Any:
        return WallClockTime("part", stacklevel=2)

    def caller() -> Any:
        with helper() as handle:
            return handle.key

    assert caller() == key(caller, "part")


def test_decoration_keeps_what_the_function_is(recorder: ProgressRecorder) -> None:
    """Name, doc, signature, annotations, kind and pickling by name (E13)."""
    assert module_level.__name__ == "module_level"
    assert module_level.__doc__ == "Double it."
    assert str(inspect.signature(module_level)) == "(x: 'int', *, y: 'int' = 2) -> 'int'"
    assert module_level.__annotations__["x"] == "int"
    assert module_level.__wrapped__(3) == 6
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert module_level(4, y=5) == 20

    @WallClockTime
    async def coroutine() -> None: ...
    @WallClockTime
    def generator() -> Any:
        yield

    @WallClockTime
    async def asynchronous() -> Any:
        yield

    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isgeneratorfunction(generator)
    assert inspect.isasyncgenfunction(asynchronous)


def test_methods_of_every_kind(recorder: ProgressRecorder, clock: Any) -> None:
    """Instance, class and static methods, above and below, keep their kind; N_ref gets their arguments (E14, E33)."""
    got: list[Any] = []

    def size(*args: Any) -> float:
        got.append(args)
        return 1.0

    class A:
        @WallClockTime(N_ref=size)
        def plain(self, x: int) -> tuple[Any, int]:
            return self, x

        @WallClockTime(N_ref=size)
        @classmethod
        def above(cls, x: int) -> tuple[Any, int]:
            return cls, x

        @classmethod
        @WallClockTime(N_ref=size)
        def below(cls, x: int) -> tuple[Any, int]:
            return cls, x

        @WallClockTime(N_ref=size)
        @staticmethod
        def static(x: int) -> int:
            return x

    a = A()
    assert (a.plain(1), a.above(2), A.below(3), a.static(4)) == ((a, 1), (A, 2), (A, 3), 4)
    assert got == [(a, 1), (A, 2), (A, 3), (4,)]
    assert isinstance(inspect.getattr_static(A, "above"), classmethod)
    assert isinstance(inspect.getattr_static(A, "static"), staticmethod)
    assert times(recorder, (M, f"{A.__qualname__}.above", None)) == [0.0]


@pytest.mark.parametrize("kind", [lambda f: f, classmethod, staticmethod], ids=["plain", "class", "static"])
def test_the_class_form_keeps_the_kind(recorder: ProgressRecorder, kind: Callable[..., Any]) -> None:
    """A static method stays one, and a named N_ref is called as the method is (E14, E15)."""

    class Base:
        def cook(*args: Any) -> int:
            return len(args)

        def n(*args: Any) -> int:
            return 10 + len(args)

    Base.cook, Base.n = kind(Base.cook), kind(Base.n)  # type: ignore[method-assign]

    @WallClockTime(method="cook", N_ref="n")
    class Recipe(Base): ...

    assert Recipe().cook(1) == Base().cook(1)
    assert "cook" in vars(Recipe)
    assert type(vars(Recipe)["cook"]) is type(vars(Base)["cook"])
    measured = recorder.forecast((M, Recipe.__qualname__, None)).measurements()
    assert [m.N_ref for m in measured] == [float(Base().n(1))]


def test_subclasses_share_or_are_not_timed(recorder: ProgressRecorder) -> None:
    """Inheriting shares the key, overriding is not timed, super() times the base part (E15)."""

    @WallClockTime(method="cook")
    class Base:
        def cook(self) -> str:
            return "base"

    class Inherits(Base): ...

    class Overrides(Base):
        def cook(self) -> str:
            return "own"

    class Calls(Base):
        def cook(self) -> str:
            return super().cook()

    assert [c().cook() for c in (Inherits, Overrides, Calls)] == ["base", "own", "base"]
    assert len(times(recorder, (M, Base.__qualname__, None))) == 2


def test_all_subclasses_at_once(recorder: ProgressRecorder, clock: Any) -> None:
    """Each subclass has a step of its own, later ones and inheriting ones too, and the base none (D51)."""

    class Base:
        def cook(self) -> None:
            clock.work(1)

    class Own(Base):
        def cook(self) -> None:
            clock.work(2)
            super().cook()

    class Inherits(Own): ...

    assert time_subclasses(Base, "cook", order="O_0") == [Own, Inherits]

    class Later(Base): ...

    for cls in (Base, Own, Inherits, Later):
        cls().cook()
    assert [times(recorder, (M, c.__qualname__, None)) for c in (Own, Inherits, Later)] == [[3], [3], [1]]
    assert recorder.forecast(Own.cook) is recorder.forecast((M, Own.__qualname__, None))
    with pytest.raises(UsageError, match="neither declared"):
        recorder.forecast((M, Base.__qualname__, None))


def _f(x: int) -> int:
    return x


class _C:
    data = 3

    class Inner: ...

    @property
    def prop(self) -> int:
        return 1

    def cook(self, x: int) -> int:
        return x

    async def later(self, x: int) -> int:
        return x


async def _async_size(x: int) -> int:
    return x


class _AsyncSize:
    async def __call__(self, x: int) -> int:
        return x


@pytest.mark.parametrize(
    ("misuse", "text"),
    [
        (lambda: WallClockTime()(_C), "needs method="),
        (lambda: WallClockTime(method=3)(_C), "method=3 must be the name"),
        (lambda: WallClockTime(method="nothing")(_C), "has no attribute 'nothing'"),
        (lambda: WallClockTime(method="data")(_C), "_C.data is a value of type int, not a method"),
        (lambda: WallClockTime(method="prop")(_C), "_C.prop is a property"),
        (lambda: WallClockTime(method="Inner")(_C), "_C.Inner is a class"),
        (lambda: WallClockTime(method="f")(_f), "method='f' is for a decorated class"),
        (lambda: WallClockTime(N_ref="size")(_f), "N_ref='size' names a method"),
        (lambda: WallClockTime("s", N_ref="size"), "N_ref='size' names a method"),
        (lambda: WallClockTime(method="cook", N_ref="nothing")(_C), r"no attribute 'nothing' \(N_ref=\)"),
        (lambda: WallClockTime(method="cook", N_ref="data")(_C), "not a method"),
        (lambda: WallClockTime(N_ref=[1]), r"N_ref=\[1\] is neither callable nor a number"),
        (lambda: WallClockTime(N_ref=True), "neither callable nor a number"),
        (lambda: WallClockTime(N_ref=_async_size), "coroutine or generator function"),
        (lambda: WallClockTime(N_ref=_AsyncSize()), "coroutine or generator function"),
        (lambda: WallClockTime(method="cook", N_ref="later")(_C), "coroutine or generator function"),
        (lambda: WallClockTime(N_ref_args=((1,), {}))(_f), "N_ref_args are for a with block"),
        (lambda: WallClockTime()(_C().cook), "a bound method cannot be timed"),
        (lambda: WallClockTime()(len), "a builtin cannot be timed"),
        (lambda: WallClockTime()(functools.partial(_f, 1)), "a value of type partial cannot be timed"),
        (lambda: WallClockTime()(math), "a module cannot be timed"),
        (lambda: WallClockTime()(_C()), "a value of type _C cannot be timed"),
        (lambda: WallClockTime()(WallClockTime()(_f)), "_f is timed already as step"),
        (lambda: WallClockTime().__enter__(), "needs a step name"),
        (lambda: WallClockTime("s", method="cook").__enter__(), "method='cook' is for a decorated class"),
        (lambda: WallClockTime(3), r"WallClockTime\(3\): a step is named by text"),
        (lambda: WallClockTime(""), "must have 1 to 200 characters"),
        (lambda: WallClockTime(order=None), "order is None"),
        (lambda: WallClockTime(order="O_N_4"), "order is 'O_N_4'"),
        (lambda: WallClockTime(variant=3), "variant=3 is not callable"),
        (lambda: WallClockTime(N_ref=lambda: 1)(_f), r"N_ref\(\) cannot take the arguments of _f\(x: 'int'\)"),
        (lambda: WallClockTime(N_ref=lambda x, *, k: 1)(_f), "cannot take the arguments"),
    ],
)
@pytest.mark.parametrize("enabled", [True, False])
def test_misuse_is_refused_at_once(
    recorder: ProgressRecorder, enabled: bool, misuse: Callable[[], Any], text: str
) -> None:
    """Every row of the table, where the declaration stands, timing enabled or not (E11, E51, KF-69)."""
    config.configure(timing={"enabled": enabled})
    with pytest.raises(UsageError, match=text) as caught:
        misuse()
    assert isinstance(caught.value, RuntimeError)


def test_an_order_without_a_size_is_constant(recorder: ProgressRecorder, caplog: pytest.LogCaptureFixture) -> None:
    """Without N_ref the order is O_0, and of one that has no use so is said once (E33)."""
    for _ in range(2):
        with WallClockTime("s", order="O_N") as activation:
            assert activation.estimate.value == 3.0  # of O_N, at size 1, it would be 3 ns
    recorder.stop(recorder.record("t", order="auto"))
    WallClockTime(order="O_0")(_f)
    told = [record.getMessage() for record in caplog.records if "there is none" in record.getMessage()]
    assert len(told) == 2
    assert "order='O_N' says how the time grows with N_ref, but there is none, so it is taken as constant" in told[0]
    assert "order='auto'" in told[1]


def test_a_manager_passes_once(recorder: ProgressRecorder) -> None:
    """Entered twice, nested or in sequence, or after being a decorator (E11)."""
    manager = WallClockTime("once")
    with manager, pytest.raises(UsageError, match="entered before"):
        manager.__enter__()
    with pytest.raises(UsageError, match="entered before"), manager:
        pass
    with pytest.raises(UsageError, match="entered before"):
        manager(_f)
    decorator = WallClockTime("twice")
    decorator(_f)
    with pytest.raises(UsageError, match="used as a decorator"), decorator:
        pass
    assert stack() == ()


def test_two_timed_methods_need_names(recorder: ProgressRecorder) -> None:
    """The key is the class's, so the second one needs a step name (E3, E8)."""

    class Both:
        def one(self) -> None: ...
        def two(self) -> None: ...

    WallClockTime(method="one")(Both)
    with pytest.raises(UsageError, match=r"declared twice.*Both.one.*Both.two"):
        WallClockTime(method="two")(Both)
    WallClockTime("two", method="two")(Both)


def test_closures_of_one_factory_share_a_step(recorder: ProgressRecorder, clock: Any) -> None:
    """Two functions of one place are one step; equal names in other functions are not (E8, KF-61)."""

    def factory(seconds: float) -> Callable[[], None]:
        @WallClockTime
        def step() -> None:
            clock.work(seconds)

        return step

    def other(seconds: float) -> Callable[[], None]:
        @WallClockTime
        def step() -> None:
            clock.work(seconds)

        return step

    one, two, three = factory(0.1), factory(0.1), other(0.3)
    for _ in range(3):
        one()
        two()
        three()
    assert times(recorder, key(one)) == [0.1] * 6
    assert times(recorder, key(three)) == [0.3] * 3
    assert recorder.estimate(key(one), 1).value == pytest.approx(0.1)
    assert recorder.estimate(key(three), 1).value == pytest.approx(0.3)


def test_disabled_does_nothing(recorder: ProgressRecorder, home: Any) -> None:
    """No N_ref call, no clock, no file; the handle answers that it knows nothing; results are the same (E19)."""
    config.configure(timing={"enabled": False})

    @WallClockTime(N_ref=lambda x: 1 / 0)
    def f(x: int) -> int:
        assert current() is None
        return x

    @WallClockTime
    def g() -> Any:
        return (yield 1)

    assert f(3) == 3
    assert list(g()) == [1]
    with WallClockTime("s", N_ref=lambda: 1 / 0) as handle:
        assert (handle.key, handle.remaining, handle.estimate, handle.log_remaining()) == (None,) * 3 + (False,)
        handle.discard()
        handle.report(0.5)
    recorder.stop(recorder.record("low"))
    assert not home.exists()


def test_disabling_while_a_step_is_active(recorder: ProgressRecorder, clock: Any) -> None:
    """The step that is active ends properly, with the stack empty (E19, E73)."""

    def f() -> None:
        with WallClockTime("s", enable_logging=True):
            config.configure(timing={"enabled": False})
            clock.work(1)

    f()
    assert stack() == () == recorder.active()
    config.configure(timing={"enabled": True})
    assert times(recorder, key(f, "s")) == [1]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (3, 3.0), (2.5, 2.5), (0, 0.0), (np.float32(1.5), 1.5), (np.int64(7), 7.0), (10**400, None), (None, None),
        (-1, None), (math.nan, None), (math.inf, None), (True, None), (np.bool_(True), None), ("3", None),
    ],
)  # fmt: skip
def test_what_n_ref_may_return(
    recorder: ProgressRecorder, caplog: pytest.LogCaptureFixture, value: Any, kept: float | None
) -> None:
    """Any real number from 0 on; None is no data; the rest is None with one warning per step (E36, E37, KF-60)."""

    @WallClockTime(N_ref=lambda: value, order="O_N")
    def f() -> None: ...

    f()
    f()
    measured = recorder.forecast(key(f)).measurements()
    assert [m.N_ref for m in measured] == ([] if kept is None else [kept, kept])
    told = [r for r in caplog.records if "no finite number" in r.message]
    assert len(told) == (kept is None and value is not None)


@pytest.mark.parametrize("n_ref", [functools.partial(max, 3), "abc".count, [1, 2].count], ids=str)
def test_n_ref_may_be_any_callable(recorder: ProgressRecorder, n_ref: Callable[..., Any]) -> None:
    """Partials, bound methods and built-ins (KF-69)."""

    @WallClockTime(N_ref=n_ref, order="O_N")
    def f(x: Any) -> Any:
        return x

    f("a" if n_ref != functools.partial else 4)
    with WallClockTime("len", N_ref=len, N_ref_args=(("abc",), {})) as handle:
        assert handle.N_ref == 3.0


def test_faults_of_n_ref_do_not_reach_the_caller(recorder: ProgressRecorder, caplog: pytest.LogCaptureFixture) -> None:
    """The body runs, nothing is recorded, one warning per step and exception type (E20, E37, KF-69)."""

    @WallClockTime(N_ref=lambda x: {}[x])
    def f(x: int) -> int:
        return x

    assert [f(1), f(2)] == [1, 2]
    assert [r.message.split(" raised ")[1] for r in caplog.records] == [
        "KeyError: 1; the run is neither estimated nor recorded"
    ]
    assert times(recorder, key(f)) == []
    config.configure(timing={"strict": True})
    with pytest.raises(KeyError):
        f(3)
    assert recorder.active() == () == stack()


def test_n_ref_sees_the_raw_arguments(recorder: ProgressRecorder) -> None:
    """A converting decorator beneath the timing one has not run yet, and the page says so (E38, E39)."""
    seen: list[Any] = []

    def from_json(function: Callable[[Any], Any]) -> Callable[[str], Any]:
        @functools.wraps(function)
        def converting(text: str) -> Any:
            return function(json.loads(text))

        return converting

    @WallClockTime(N_ref=lambda text: seen.append(text) or len(text), order="O_N")
    @from_json
    def f(value: Any) -> Any:
        return value

    assert f("[1, 2]") == [1, 2]
    assert seen == ["[1, 2]"]
    page = (Path(__file__).parents[2] / "docs" / "estimates.md").read_text()
    assert "sees the raw ones" in " ".join(page.split())
    for shape in ("file_size", "size_times_groups", "slices_and_annuli", "unless_cached"):
        assert f"def {shape}" in page


def test_variants_have_measurements_of_their_own(
    recorder: ProgressRecorder, caplog: pytest.LogCaptureFixture, clock: Any
) -> None:
    """Each text is a series; what is no text is left out with a warning (E9)."""

    @WallClockTime(variant=lambda x: {0: None, 1: "live", 2: 7}[x])
    def f(x: int) -> None:
        clock.work(x + 1)

    for x in (0, 1, 1, 2):
        f(x)
    assert times(recorder, key(f)) == [1, 3]
    assert times(recorder, key(f), "live") == [2, 2]
    assert "variant returned 7" in caplog.text
