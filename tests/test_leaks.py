"""The leak fixture bites: a small suite full of leaking tests runs in a session of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

CONFTEST = Path(__file__).with_name("conftest.py")

SAMPLE = """
import os, socket, subprocess, sys, tempfile, threading
import psutil, pytest

kept = []
SLEEP = [sys.executable, "-c", "import time; time.sleep(100)"]

def test_process():
    kept.append(subprocess.Popen(SLEEP))

def test_orphan_in_a_session_of_its_own():
    code = f"import subprocess; subprocess.Popen({SLEEP!r}, start_new_session=True, stdout=subprocess.DEVNULL)"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_thread():
    gate = threading.Event()
    kept.append(gate)
    threading.Thread(target=gate.wait, name="left-over", daemon=True).start()

def test_socket():
    kept.append(socket.socket())

def test_open_file():
    kept.append(open(__file__))

def test_temp_folder():
    tempfile.mkdtemp(prefix="workspan-")

def test_temp_file_of_a_child():
    subprocess.run([sys.executable, "-c", "import tempfile; tempfile.mkstemp(suffix='.wsp')"], check=True)

def test_log_folder():
    os.mkdir("workspan_logs")

def test_environment_set():
    os.environ["WORKSPAN_HOST"] = "here"

def test_environment_removed():
    del os.environ["WORKSPAN_PURE_PYTHON"]

def test_cwd(tmp_path):
    os.chdir(tmp_path)

@pytest.mark.leaks("threads")
def test_exempt_without_reason():
    pass

def test_fails_and_leaks():
    kept.append(socket.socket())
    raise AssertionError("its own reason")

def test_clean_after_all_that(tmp_path, monkeypatch):
    assert os.environ["WORKSPAN_PURE_PYTHON"] == "1"
    monkeypatch.setenv("WORKSPAN_HOST", "there")
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-c", ""], check=True)
    with open("file", "w"), tempfile.TemporaryDirectory(prefix="workspan-"), socket.socket():
        pass

@pytest.mark.leaks("threads", reason="the subject of the test")
def test_exempt():
    test_thread()

def test_thread_that_ends_by_itself():
    threading.Thread(target=threading.Event().wait, args=(0.1,)).start()

def test_lasting_loop_of_zarr():
    import zarr
    zarr.create_array({}, shape=(4,), chunks=(2,), dtype="u1")[:] = 1
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run the sample; map each of its tests to what the summary says of it."""
    folder = tmp_path_factory.mktemp("leaks")
    hurry = "\nimport helpers.leaks\nhelpers.leaks.GRACE_SECONDS = 0.3\n"
    (folder / "conftest.py").write_text(CONFTEST.read_text() + hurry)
    (folder / "test_sample.py").write_text(SAMPLE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = leaks\n")
    environment = os.environ | {"PYTHONPATH": str(CONFTEST.parent), "WORKSPAN_PURE_PYTHON": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "-vv", "--color=no", str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    print(done.stdout)
    blocks: dict[str, str] = {}
    for block in done.stdout.split("\n____")[1:]:
        name = block.split(" ____")[0].strip("_ ").removeprefix("ERROR at teardown of ")
        name = name.removeprefix("ERROR at setup of ")
        blocks[name] = blocks.get(name, "") + block
    for line in done.stdout.splitlines():
        if line.startswith("PASSED "):
            blocks.setdefault(line.rpartition("::")[2], "PASSED")
    return blocks


@pytest.mark.parametrize(
    ("test", "text"),
    [
        ("test_process", "processes: pid "),
        ("test_orphan_in_a_session_of_its_own", "processes: pid "),
        ("test_thread", "threads: <Thread(left-over"),
        ("test_socket", "-> socket:["),
        ("test_open_file", "test_sample.py"),
        ("test_temp_folder", "files: /"),
        ("test_temp_file_of_a_child", ".wsp"),
        ("test_log_folder", "workspan_logs"),
        ("test_environment_set", "environment: WORKSPAN_HOST=here"),
        ("test_environment_removed", "environment: WORKSPAN_PURE_PYTHON=1 was removed"),
        ("test_cwd", "cwd: "),
        ("test_exempt_without_reason", "use @pytest.mark.leaks(*kinds, reason=...)"),
    ],
)
def test_each_kind_of_leak_fails_the_test_that_left_it(report: dict[str, str], test: str, text: str) -> None:
    """A leak of each kind is reported as an error of that test, and names the thing left behind."""
    assert text in report[test]


def test_a_failed_test_is_not_blamed_twice(report: dict[str, str]) -> None:
    """The leak of a failed test is printed below its failure."""
    assert "its own reason" in report["test_fails_and_leaks"]
    assert "ERROR at" not in report["test_fails_and_leaks"]


@pytest.mark.parametrize(
    "test",
    ["test_clean_after_all_that", "test_exempt", "test_thread_that_ends_by_itself", "test_lasting_loop_of_zarr"],
)
def test_what_is_tidied_or_exempt_passes(report: dict[str, str], test: str) -> None:
    """Tests that tidy up, are exempt with a reason or use zarr's lasting threads pass, also after leaking ones."""
    assert report[test] == "PASSED"
