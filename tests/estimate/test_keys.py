"""A key names a step the same way wherever its source runs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from workspan.errors import UsageError
from workspan.estimate import keys
from workspan.estimate.keys import Key, Place
from workspan.estimate.manager import WallClockTime


def test_names_for_people() -> None:
    """Full name, root label and substep label, with parts that are null left out; a key equals its tuple (E1, E10)."""
    key = Key("pkg.mod", "Reduction.reduce", "load")
    assert (key.full_name, key.root_label, key.substep_label) == (
        "pkg.mod.Reduction.reduce.load",
        "reduce: load",
        "load",
    )
    unnamed = Key("m", "Recipe", None)
    assert (unnamed.full_name, unnamed.root_label, unnamed.substep_label) == ("m.Recipe", "Recipe", "Recipe")
    assert (Key(None, None, "x").full_name, Key(None, None, "x").root_label) == ("x", "x")
    assert unnamed == ("m", "Recipe", None)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "a\x1b[2J", "a\x85", "a\ud800"])
def test_a_bad_step_name_is_refused(name: str) -> None:
    """Empty, too long, with control characters, or with what no file can hold (E7)."""
    with pytest.raises(UsageError, match="must have 1 to 200 characters"):
        keys.checked_name(name, "here")


def test_a_name_that_is_no_text_is_refused() -> None:
    """A number names no step (E7, E11); 200 characters do."""
    with pytest.raises(UsageError, match="the step name is 3"):
        keys.checked_name(3, "here")
    assert keys.checked_name("x" * 200, "here") == "x" * 200


SCRIPT = """
import sys
from workspan.estimate.keys import key_of_frame, declared_module
class A:
    def f(self):
        return key_of_frame(sys._getframe(), "s")
class B(A): pass
def outer():
    return (lambda: key_of_frame(sys._getframe(), "s"))()
print(*B().f(), sep="|")
print(*outer(), sep="|")
print(*key_of_frame(sys._getframe(), "s"), sep="|")
print(declared_module(A), declared_module(outer))
"""


def run(folder: Path, *words: str) -> list[str]:
    """Run Python in a folder; return the lines that it prints."""
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_script_is_named_by_its_stem_and_a_hash(tmp_path: Path) -> None:
    """Two scripts of one name share nothing, -m gives the module's name, and no path enters a key (E4, E5, E6)."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "job.py").write_text(SCRIPT)
    first, second = run(tmp_path / "one", "job.py"), run(tmp_path / "two", "job.py")
    module = first[0].split("|")[0]
    assert module.startswith("__main__:job-")
    assert len(module) == len("__main__:job-") + 6
    assert first[0] == f"{module}|A.f|s"
    assert first[1] == f"{module}|outer.<locals>.<lambda>|s"
    assert first[2] == f"{module}|None|s"
    assert first[3] == f"{module} {module}"
    assert second[0] != first[0]
    assert run(tmp_path / "one", str(tmp_path / "one" / "job.py")) == first
    assert run(tmp_path / "one", "-m", "job")[0] == "job|A.f|s"
    assert run(tmp_path, "-c", SCRIPT)[0] == "__main__|A.f|s"


def test_a_wrapper_from_elsewhere_changes_no_key(tmp_path: Path) -> None:
    """A function of a script is a step of the script, whoever made the wrapper beneath the decorator (E2, E6)."""
    (tmp_path / "elsewhere.py").write_text(
        "import functools\ndef keep(f):\n    @functools.wraps(f)\n    def inner(*a): return f(*a)\n    return inner\n"
    )
    (tmp_path / "job.py").write_text(
        "from elsewhere import keep\nfrom workspan.estimate.keys import declared_module\n"
        "def f(): pass\nprint(declared_module(f), declared_module(keep(f)))\n"
    )
    plain, wrapped = run(tmp_path, "job.py")[0].split()
    assert plain.startswith("__main__:job-")
    assert wrapped == plain
    assert run(tmp_path, "-m", "job") == ["job job"]


def test_two_places_may_not_claim_one_key(tmp_path: Path) -> None:
    """The error names both places (E8, KF-61)."""
    file = tmp_path / "mod.py"
    file.write_text("")
    key = Key("m", "f", None)
    keys.claim(key, Place(str(file), 3))
    keys.claim(key, Place(str(file), 3))
    with pytest.raises(UsageError, match=r"declared twice, at mod.py:3 and at mod.py:9"):
        keys.claim(key, Place(str(file), 9))


def test_a_reloaded_definition_replaces_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edited file, and a cell that never was a file, may declare a step anew (E8)."""
    file = tmp_path / "mod.py"
    file.write_text("")
    key = Key("m", "g", None)
    monkeypatch.setattr(keys, "time", SimpleNamespace(time=lambda: time.time() - 100))
    keys.claim(key, Place(str(file), 3))
    keys.claim(key, Place(str(file), 9))
    keys.claim(Key("m", "h", None), Place("<stdin>", 1))
    keys.claim(Key("m", "h", None), Place("<stdin>", 2))


def test_two_sections_of_one_name_warn_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They share a step, and that is told once per process (E8, KF-61)."""
    file = tmp_path / "mod.py"
    file.write_text("")
    key = Key("m", "twice", "s")
    for line in (3, 9, 3, 9):
        keys.note_section(key, (str(file), line))
    assert [record.message for record in caplog.records] == [
        "step m.twice.s is at mod.py:3 and at mod.py:9: their times are mixed; give one of them another name"
    ]


def test_a_wrong_key_is_refused() -> None:
    """A text is no key; lists and pairs are (E114)."""
    assert keys.as_key(["m", "f"]) == ("m", "f", None)
    with pytest.raises(UsageError, match=r"'m\.f' is no key"):
        keys.as_key("m.f")


def test_a_timed_function_stands_for_its_step() -> None:
    """Also as a method of an object; of several steps the outermost; an untimed function is refused (E1, E7)."""

    class Service:
        @WallClockTime("outer", N_ref=lambda *arguments: arguments[1], order="O_N")
        @WallClockTime("inner", N_ref=lambda self, n: n, order="O_N")
        def serve(self, n: int) -> int:
            return n

    key = keys.as_key(Service.serve)
    assert (key.module, key.qualname, key.step_name) == (__name__, Service.serve.__qualname__, "outer")
    assert keys.as_key(Service().serve) == keys.as_key(tuple(key)) == key
    with pytest.raises(UsageError, match="pass the timed function itself"):
        keys.as_key(len)
