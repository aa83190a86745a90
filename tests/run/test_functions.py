from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import workspan
from workspan.run.functions import function_fingerprint

SOURCE = """
import functools, threading

def inner(block, sigma=2.0, *, mode="wrap"):
    if mode in {"wrap", "clip", "zero", "edge", "mirror"}:
        def deeper(x):
            return (x * sigma, 1e-9, b"raw", None, ...)
        return [deeper(n) for n in range(3)]
    raise ValueError(mode)

class Smooth:
    def __init__(self, sigma):
        self.sigma, self.lock, self.seen = sigma, threading.Lock(), []
    def __call__(self, block):
        return self.sigma
    def run(self, block):
        return -self.sigma

def bind(sigma):
    lock, handle = threading.Lock(), object()
    def bound(block):
        with lock:
            return sigma, handle, bound
    return bound

FUNCTIONS = [
    inner, Smooth(2.0), Smooth(2.0).run, bind(2.0), functools.partial(inner, sigma=2.0), lambda block: block.read_roi,
    functools.cache(inner), functools.partial(functools.partial(bind(2.0), 1), mode="clip"), print,
]
"""


def made_of(source: str) -> list[str | None]:
    """Fingerprints of the functions in *source*."""
    room: dict[str, object] = {"__name__": "job"}
    exec(compile(source, f"/somewhere/{id(room)}/job.py", "exec", dont_inherit=True), room)
    return [function_fingerprint(function) for function in room["FUNCTIONS"]]


class TestFingerprint:
    @pytest.mark.parametrize("seed", ["1", "77"])
    def test_it_is_the_same_in_another_process(self, tmp_path: Path, seed: str) -> None:
        """The same source has the same fingerprints in another process, file and hash seed, warmed up or not (R29)."""
        script = tmp_path / "other.py"
        script.write_text(
            "\n\n\nfrom workspan.run.functions import function_fingerprint\n"
            + SOURCE
            + "for _ in range(50): bind(2.0)(None), inner(None)\n"
            + "print('\\n'.join(map(function_fingerprint, FUNCTIONS)))\n"
        )
        source = str(Path(next(iter(workspan.__path__))).parent)
        done = subprocess.run(
            [sys.executable, script],
            env={**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        )
        assert done.stdout.splitlines() == made_of(SOURCE)

    def test_functions_are_told_apart(self) -> None:
        """Each of the kinds of callable has a fingerprint of its own, with its name in front (D38)."""
        found = made_of(SOURCE)
        assert len(set(found)) == len(found)
        assert [text.split()[0] for text in found] == [
            "inner", "Smooth", "Smooth.run", "bind.<locals>.bound", "inner", "<lambda>", "inner",
            "bind.<locals>.bound", "print",
        ]  # fmt: skip
        assert {text.split()[2] for text in found} == {f"py:{sys.implementation.cache_tag}"}

    @pytest.mark.parametrize(
        ("old", "new", "changed"),
        [
            ("x * sigma", "x + sigma", [0, 4, 6]),  # in the body of an inner function
            ("1e-9", "1e-8", [0, 4, 6]),  # a constant of it
            ('"zero", ', "", [0, 4, 6]),  # a member of a constant set
            ("range(3)", "reversed(3)", [0, 4, 6]),  # a name
            ("sigma=2.0, *", "sigma=3.0, *", [0, 4, 6]),  # a default
            ('mode="wrap"', 'mode="clip"', [0, 4, 6]),  # a default by keyword
            ("return self.sigma", "return 2 * self.sigma", [1, 2]),
            ("return -self.sigma", "return +self.sigma", [2]),
            ("Smooth(2.0).run", "Smooth(2.5).run", [2]),
            (" bind(2.0), functools", " bind(4.0), functools", [3]),
            ("partial(inner, sigma=2.0)", "partial(inner, sigma=2)", [4]),
            ("block.read_roi", "block.write_roi", [5]),
            ('1), mode="clip"', '1), mode="zero"', [7]),
            ("print,", "repr,", [8]),
            ("self.seen = sigma, threading.Lock(), []", "self.seen = sigma, threading.Lock(), [1]", []),
            ("def inner", "# a comment\n\ndef inner", []),
            ("deeper(x):", "deeper(x):  # a comment", []),
        ],
    )
    def test_a_change_is_seen_where_it_was_made(self, old: str, new: str, changed: list[int]) -> None:
        """Another body, constant, name, default or bound value is another function; a comment is none (R29, D38)."""
        assert SOURCE.count(old) >= 1
        pairs = zip(made_of(SOURCE), made_of(SOURCE.replace(old, new)), strict=True)
        assert [number for number, (one, two) in enumerate(pairs) if one != two] == changed

    @given(st.lists(st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5), max_size=5))
    def test_any_constant_counts(self, values: list[object]) -> None:
        """Constants that differ give different fingerprints, equal ones the same (R29)."""

        def with_constants(constants: tuple[object, ...]) -> str | None:
            code = (lambda block: None).__code__.replace(co_consts=(None, constants))
            return function_fingerprint(types.FunctionType(code, {}))

        constants = tuple(values)
        assert with_constants(constants) == with_constants(tuple(list(values)))
        assert with_constants((*constants, 0)) != with_constants(constants)
        assert (
            with_constants((*constants, 0)) != with_constants((*constants, False)) != with_constants((*constants, ""))
        )

    def test_what_cannot_be_looked_at_has_none(self) -> None:
        """An object that refuses to be looked at has no fingerprint, and that is no error (D38)."""

        class Refuses:
            def __call__(self, block: object) -> None:
                """Do nothing."""

            def __getattr__(self, name: str) -> object:
                raise RuntimeError("no")

        deep: tuple[object, ...] = ()
        for _ in range(5000):
            deep = (deep,)
        assert function_fingerprint(Refuses()) is None
        assert function_fingerprint(functools.partial(print, deep)) is None

    def test_what_a_run_fills_is_no_change(self) -> None:
        """A list, a dict or an array that the function writes to does not make it another one after a run (R29)."""
        numpy = pytest.importorskip("numpy")
        seen, table, out = [], {}, numpy.zeros(3)

        def process(block: object, cache: list[object] = []) -> None:  # noqa: B006
            seen.append(block)
            cache.append(block)
            table[block] = out[0] = 1

        before = function_fingerprint(process)
        process(1)
        assert function_fingerprint(process) == before


def task(path: Path, function: object) -> workspan.Task:
    """Two blocks of one voxel."""
    roi = workspan.Roi((0,), (1,))
    return workspan.Task("t", workspan.Roi((0,), (2,)), roi, roi, function, tracking_path=path)


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_changed_function_only_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture, engine: str) -> None:
    """The run after a change says so once, with the remedy, and done blocks stay done; then it is the new one (R29)."""
    workspan.logging.set_log_basedir(tmp_path / "logs")
    caplog.set_level(logging.WARNING, logger="workspan")

    def run(sigma: int) -> int:
        def smooth(block: object) -> int:
            return sigma

        report = workspan.run_blockwise(
            task(tmp_path / "t", smooth), engine=engine, progress=False, summary=False, return_report=True
        )
        assert report["t"].blocks.count == 2
        return report["t"].blocks.skipped

    assert [run(1), run(1)] == [0, 2]
    assert caplog.records == []
    assert [run(2), run(2)] == [2, 2]
    (record,) = caplog.records
    assert "the function of the task has changed" in record.getMessage()
    assert "smooth" in record.getMessage()
    assert "blocks that are done stay done. Call task.reset() to run them again" in record.getMessage()


def test_another_version_of_python_is_no_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Code of two versions of Python cannot be compared, so nothing is said (R29, D38)."""
    from workspan.store.tracking import TrackingStore

    layout = task(tmp_path, print).layout
    for function in ("f 01 py:cpython-311", "f 02 py:cpython-312", "f 03 py:cpython-312"):
        TrackingStore.open(tmp_path / "t", layout, function=function).close()
    assert [record.getMessage().count("f 02 py:cpython-312 -> f 03") for record in caplog.records] == [1]
