"""The house stands as it was drawn: imports point one way, files stay short, sockets are not trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers import house

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "workspan"
MODULES = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
TESTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(ROOT.glob("tests/**/test_*.py"))}
FILES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for pattern in ("*.md", "*.toml", "Makefile", ".ci/*", "tools/*", "src/**/*.py*", "docs/*", "benchmarks/*")
    for path in sorted(ROOT.glob(pattern))
    if path.suffix not in (".pyc", ".so") and path.is_file()
}

Checker = Callable[[str, str], Iterator[str]]


@pytest.mark.parametrize(
    ("checker", "files"),
    [
        pytest.param(house.wrong_imports, MODULES, id="imports point one way"),
        pytest.param(house.too_long, MODULES, id="files are short"),
        pytest.param(house.unpickling, MODULES, id="nothing from a socket is unpickled"),
        pytest.param(house.machine_paths, FILES, id="no machine paths"),
        pytest.param(house.undocumented_tests, TESTS, id="tests say what they show"),
    ],
)
def test_the_house_keeps_its_rules(checker: Checker, files: dict[str, str]) -> None:
    """No file offends against the rule (R45 for the wire)."""
    assert files
    assert [line for path, text in files.items() for line in checker(path, text)] == []


def test_every_folder_is_a_room() -> None:
    """A new folder of the package has a place in the order of rooms."""
    folders = {path.split("/")[0] for path in MODULES if "/" in path}
    assert folders <= set(house.ROOMS)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("grid/a.py", "from workspan.schedule import state"),
        ("grid/a.py", "import workspan.schedule.state"),
        ("grid/a.py", "from ..schedule import state"),
        ("grid/a.py", "from .. import schedule"),
        ("grid/__init__.py", "from ..schedule import state"),
        ("grid/a.py", "def f():\n    from workspan.run import Task"),
        ("grid/a.py", "def f():\n    importlib.import_module('workspan.run.task')"),
        ("grid/a.py", "if TYPE_CHECKING:\n    from workspan.schedule import state"),
        ("grid/a.py", "from workspan import Task"),
        ("grid/a.py", "import workspan"),
        ("run/a.py", "from workspan.cli import main"),
        ("errors.py", "from workspan.config import settings"),
        ("config.py", "from workspan.measure import stats"),
        ("measure/a.py", "from workspan.grid import Block"),
    ],
)
def test_an_import_down_the_house_is_found(path: str, text: str) -> None:
    """However it is spelled, an import from a later room is an offence."""
    assert len(list(house.wrong_imports(path, text))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("schedule/a.py", "from workspan.grid import Layout"),
        ("schedule/a.py", "from workspan.schedule.state import TaskState"),
        ("schedule/a.py", "from .state import TaskState\nfrom . import state\nfrom ..grid.layout import Layout"),
        ("grid/a.py", "from workspan.errors import UsageTypeError\nfrom workspan import errors"),
        ("config.py", "from workspan.errors import ConfigurationError"),
        ("measure/a.py", "if TYPE_CHECKING:\n    from workspan.grid import Block"),
        ("run/a.py", "def f():\n    from workspan.views import panel"),
        ("compat/a.py", "import workspan"),
        ("__init__.py", "import workspan.cli"),
        ("grid/a.py", "import workspanner\nimport numpy"),
    ],
)
def test_an_import_up_the_house_is_allowed(path: str, text: str) -> None:
    """Imports from earlier rooms, the own room and the shared modules are no offence."""
    assert list(house.wrong_imports(path, text)) == []


def test_a_long_file_is_found() -> None:
    """501 lines are too many, 500 are not."""
    assert list(house.too_long("a.py", "\n" * 501)) == ["a.py: 501 lines, more than 500"]
    assert list(house.too_long("a.py", "\n" * 500)) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("engines/wire.py", "import pickle\npickle.loads(data)"),
        ("engines/a.py", "import socket\nimport cloudpickle as cp\ncp.loads(data)"),
        ("engines/a.py", "from socket import create_server\nfrom pickle import loads as undo\nundo(data)"),
        ("engines/a.py", "def f():\n    import socket, pickle\n    pickle.Unpickler(file).load()"),
    ],
)
def test_unpickling_beside_a_socket_is_found(path: str, text: str) -> None:
    """A module that reads sockets and unpickles, under whatever name, is an offence (R45)."""
    assert len(list(house.unpickling(path, text))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("engines/a.py", "import cloudpickle\ncloudpickle.loads(sys.stdin.buffer.read())"),
        ("engines/a.py", "import socket, cloudpickle, json\ncloudpickle.dumps(1)\njson.loads(text)"),
    ],
)
def test_other_pickling_is_allowed(path: str, text: str) -> None:
    """Unpickling from a pipe and pickling beside a socket are no offences."""
    assert list(house.unpickling(path, text)) == []


def test_a_machine_path_is_found() -> None:
    """A path of somebody's machine is an offence, a relative one or a URL's is not."""
    home = "/".join(["", "home", "ann"])  # in parts, since this file is looked at too
    assert list(house.machine_paths("a.py", f"x = 1\np = '{home}/x.zarr'")) == [f"a.py:2: {home}"]
    assert list(house.machine_paths("a.py", "src/work/a\nhttps://example.org/home/a\n/tmp/x")) == []


def test_a_test_without_a_sentence_is_found() -> None:
    """A test function without docstring is an offence, also in a class; other functions are not."""
    text = "class TestA:\n    def test_a(self): pass\ndef helper(): pass\ndef test_b():\n    'Says it.'"
    assert list(house.undocumented_tests("t.py", text)) == ["t.py:2: test_a has no docstring"]
