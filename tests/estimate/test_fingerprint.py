"""A fingerprint changes when N_ref computes something else, and only then."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from workspan.errors import UsageError
from workspan.estimate.fingerprint import comparable, fingerprint

Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return what turns source into its function ``f``, from a file of its own or from nowhere."""
    numbers = count()

    def make(source: str, *, file: bool = True, name: str = "f") -> Any:
        path = tmp_path / f"module{next(numbers)}.py"
        text = textwrap.dedent(source)
        if file:
            path.write_text(text)
        names: dict[str, Any] = {"__name__": "pkg.mod"}
        exec(compile(text, str(path), "exec"), names)
        return names[name]

    return make


BASE = "def f(x, n=2):\n    return x.size * n + 3\n"


@pytest.mark.parametrize("file", [True, False], ids=["source", "code"])
@pytest.mark.parametrize(
    "other",
    [
        "def f(x, n=2):\n    return x.size * n + 4\n",
        "def f(x, n=2):\n    return x.nbytes * n + 3\n",
        "def f(x, n=3):\n    return x.size * n + 3\n",
        "def f(x, n=2):\n    return x.size - n + 3\n",
        "def f(x, *, n=2):\n    return x.size * n + 3\n",
    ],
)
def test_what_changes_the_result_changes_the_fingerprint(make: Make, other: str, file: bool) -> None:
    """Body, constant, attribute, default (E40), with and without source (E44); 16 digits behind the scheme (E114)."""
    one, two = fingerprint(make(BASE, file=file)), fingerprint(make(other, file=file))
    assert one != two
    assert comparable(one, two)
    assert len(one.partition(":")[2]) == 16


@pytest.mark.parametrize("file", [True, False], ids=["source", "code"])
def test_values_that_it_uses_count(make: Make, file: bool) -> None:
    """Closure values, global constants, and helpers of the package at any place (E40, E42)."""
    closure = "def outer(k):\n    def g(x):\n        return x * k\n    return g\nf = outer({})\n"
    glob = "K = {}\ndef f(x):\n    return x * K\n"
    helper = "def h(x):\n    return i(x)\ndef i(x):\n    return x * {} if x else h(0)\ndef f(x):\n    return h(x)\n"
    for source in (closure, glob, helper):
        prints = [fingerprint(make(source.format(k), file=file)) for k in (2, 3, 2)]
        assert prints[0] == prints[2] != prints[1], source


def test_a_helper_called_through_self_counts(make: Make) -> None:
    """A method that N_ref calls on its first argument, found on the class that defines it (E40)."""
    source = "class A:\n    def size(self):\n        return self.n * {}\n    def f(self):\n        return self.size()\n"
    classes = [make(source.format(k), name="A") for k in (2, 3, 2)]
    prints = [fingerprint(cls.f, owner=cls) for cls in classes]
    assert prints[0] == prints[2] != prints[1]
    bound = [fingerprint(cls().f) for cls in classes]
    assert bound[0] == bound[2] != bound[1]


@pytest.mark.parametrize(
    "other",
    [
        '# comment\n\n\ndef f(x, n=2):\n    """Say it."""\n    return x.size*n+3  # here\n',
        "def f(x: int, n: int = 2) -> float:\n    return (\n        x.size * n\n        + 3\n    )\n",
        "def g(x, n=2):\n    return x.size * n + 3\nf = g\n",
    ],
)
def test_what_does_not_matter_does_not_count(make: Make, other: str) -> None:
    """Comments, layout, docstring, annotations, the own name, the file (E41)."""
    assert fingerprint(make(other)) == fingerprint(make(BASE))


def test_the_same_text_in_f_strings_is_the_same(make: Make) -> None:
    """Literal parts of an f-string, which Python versions cut differently, are joined (E41)."""
    assert fingerprint(make("def f(x):\n    return len(f'a' f'b{x}')\n")) == fingerprint(
        make("def f(x):\n    return len(f'ab{x}')\n")
    )


def test_it_is_the_same_in_every_process_and_version(tmp_path: Path) -> None:
    """Hash seed, process and Python version do not matter: the figures stand here for all of them (E41)."""
    (tmp_path / "job.py").write_text(
        "from workspan.estimate.fingerprint import fingerprint\n"
        "S = frozenset({'a', 'b', 'c'})\n"
        "def f(x, k={1, 2} and 3):\n    return f'{x}' in S and [y for y in x] and x.size * k\n"
        "print(fingerprint(f), fingerprint(lambda x: x.nbytes))\n"
        "def g(x, k): return len(f'{x!r:>{k}}')\n"  # 3.12 adds an empty text to such a format
        "print(fingerprint(g))\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    found = subprocess.check_output([sys.executable, "job.py"], cwd=tmp_path, text=True, env=environment)
    assert found.split() == ["src1:549f30f86530bd28", "src1:65fedf0a532094e3", "src1:4b79fec1606c6647"]


def test_two_lambdas_on_one_line_are_told_apart(make: Make) -> None:
    """By their position (E43)."""
    source = "f = (lambda x: x * 2, lambda x: x * 3, lambda x: x * 2)\n"
    one, two, three = map(fingerprint, make(source))
    assert one == three != two
    assert one.startswith("src")


def test_without_source_it_is_tagged_by_the_version(make: Make) -> None:
    """Hash of the code, comparable within a Python version only (E44)."""
    compiled, written = fingerprint(make(BASE, file=False)), fingerprint(make(BASE))
    assert compiled.startswith(f"code{sys.version_info[0]}.{sys.version_info[1]}:")
    assert not comparable(compiled, written)
    assert not comparable(None, written)


def test_wrapped_partial_and_callable_objects_are_followed(make: Make) -> None:
    """Wrappers, partials, callable objects and built-ins (E42, KF-69)."""
    source = """
        import functools
        def deco(g):
            @functools.wraps(g)
            def w(*a):
                return g(*a)
            return w
        @deco
        def f(x):
            return x * {}
    """
    prints = [fingerprint(make(source.format(k))) for k in (2, 3, 2)]
    assert prints[0] == prints[2] != prints[1]
    source = "class C:\n    def __init__(self, k): self.k = k\n    def __call__(self, x): return x * self.k\n"
    c = make(source, name="C")
    assert fingerprint(c(2)) == fingerprint(c(2)) != fingerprint(c(3))
    assert fingerprint(functools.partial(max, 1)) != fingerprint(functools.partial(max, 2))
    assert fingerprint(len) != fingerprint(sum)


def test_a_version_is_mixed_in(make: Make) -> None:
    """What nobody can see is told by N_ref_version (E45)."""
    f = make(BASE)
    assert fingerprint(f) != fingerprint(f, version="2")


def test_what_is_not_callable_is_refused() -> None:
    """A number has no fingerprint (E114)."""
    with pytest.raises(UsageError, match="3 has no fingerprint"):
        fingerprint(3)
