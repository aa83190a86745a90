"""Fail a test that leaves something behind: `tests/conftest.py` applies this to every test.

A :func:`snapshot` before the test is compared with one after it. What is new, is a leak. Things that die by themselves
get a second for it. A test that already failed is not blamed twice: its leaks are printed below its report.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator

import psutil
import pytest

KINDS = ("processes", "threads", "descriptors", "files", "environment", "cwd")

#: Threads that a library starts once and keeps until the interpreter ends, by the beginning of their name.
LASTING_THREADS = (
    "zarr_io",  # zarr's event loop, started by the first synchronous call
    "zarr_pool",
    "asyncio_",  # the default thread pool of that event loop
)
#: Descriptors of that kind, by what they point to.
LASTING_DESCRIPTORS = re.compile(
    r"/dev/u?random"
    rf"|/proc/{os.getpid()}/(clear_refs|io|status)"  # the profile of this process: reopening would cost 60 us a block
)

GRACE_SECONDS = 5.0  # a busy machine ends threads and processes late; what stays for good is found all the same

Snapshot = dict[str, dict[object, str]]  # kind -> identity -> description for people

_token = b"LEAK_TOKEN=" + uuid.uuid4().hex.encode()
_failed = pytest.StashKey[bool]()
_temp_folder = pytest.StashKey[str]()


def snapshot() -> Snapshot:
    """Look at what this process holds now."""
    return {
        "processes": _processes(),
        "threads": _threads(),
        "descriptors": _descriptors(),
        "files": _files(),
        "environment": {(k, v): f"{k}={v}" for k, v in os.environ.items() if k.startswith(("WORKSPAN_", "DAISY_"))},
        "cwd": {os.getcwd(): os.getcwd()},
    }


def new_in(after: Snapshot, before: Snapshot, allowed: tuple[str, ...] = ()) -> list[str]:
    """List what appeared (and for the environment, what went) between two snapshots, one line each."""
    found = []
    for kind in KINDS:
        if kind not in allowed:
            found += [f"{kind}: {text}" for key, text in after[kind].items() if key not in before[kind]]
    if "environment" not in allowed:
        names = {name for name, _ in after["environment"]}
        gone = [text for (name, _), text in before["environment"].items() if name not in names]
        found += [f"environment: {text} was removed" for text in gone]
    return found


def _processes() -> dict[object, str]:
    """Descendants, also those that were orphaned or lead a session of their own: they have a parent or our token."""
    pids = set()
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # cheap, and reaps nothing
        pids.update(child.pid for child in psutil.Process().children())
    except ChildProcessError:  # there are none
        pass
    if sys.platform == "linux":
        pids.update(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _has_token(pid))
    return {pid: _describe(pid) for pid in pids - {os.getpid()}}


def _has_token(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as environ:
            return _token in environ.read()
    except OSError:  # ended meanwhile, or another user's
        return False


def _describe(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"pid {pid} ({process.status()}): {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"pid {pid}"


def _threads() -> dict[object, str]:
    return {t: repr(t) for t in threading.enumerate() if not t.name.startswith(LASTING_THREADS)}


def _descriptors() -> dict[object, str]:
    folder = "/proc/self/fd"
    found: dict[object, str] = {}
    lasting, seen = _zarr_descriptors(), set[str]()
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        try:
            target = os.readlink(f"{folder}/{name}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        if LASTING_DESCRIPTORS.fullmatch(target) and target not in seen:
            seen.add(target)  # one of each may last
        elif int(name) not in lasting:
            found[name, target] = f"{name} -> {target}"
    return found


def _zarr_descriptors() -> set[int]:
    """The selector and wake-up sockets of zarr's lasting event loop, if it runs."""
    sync = sys.modules.get("zarr.core.sync")
    loop = sync.loop[0] if sync is not None else None
    if loop is None or loop.is_closed():
        return set()
    parts = (loop._selector, loop._ssock, loop._csock)
    return {part.fileno() for part in parts if part is not None}


def _files() -> dict[object, str]:
    """Entries of the temp folder, which is this session's own, and run folders in the working directory."""
    here = [os.path.abspath(name) for name in os.listdir() if name.startswith(("workspan", "daisy"))]
    temp = [entry.path for entry in os.scandir(tempfile.gettempdir())]
    return {path: path for path in here + temp}


def _clean_up(after: Snapshot, before: Snapshot) -> None:
    """Put things back so that only the test that leaked is blamed."""
    for pid in after["processes"].keys() - before["processes"].keys():
        try:
            psutil.Process(pid).kill()
            os.waitpid(pid, 0)
        except (psutil.Error, ChildProcessError):
            pass
    for path in after["files"].keys() - before["files"].keys():
        if path.startswith(tempfile.gettempdir()):
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    for name, _ in after["environment"]:
        os.environ.pop(name, None)
    os.environ.update(before["environment"].keys())
    os.chdir(*before["cwd"])


def _allowed(item: pytest.Item) -> tuple[str, ...]:
    kinds: tuple[str, ...] = ()
    for mark in item.iter_markers("leaks"):
        if not mark.args or set(mark.args) - set(KINDS) or not mark.kwargs.get("reason"):
            text = f"use @pytest.mark.leaks(*kinds, reason=...) with kinds from {KINDS}, not {mark}"
            pytest.fail(text, pytrace=False)
        kinds += mark.args
    return kinds


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare before and after; set up first and so torn down last of a test's own fixtures."""
    allowed = _allowed(request.node)
    before = snapshot()
    yield
    if (outlet := sys.modules.get("workspan.live.outlet")) is not None:
        outlet.stop()  # open until the process ends, by design
    end = time.monotonic() + GRACE_SECONDS
    after = snapshot()
    while (found := new_in(after, before, allowed)) and time.monotonic() < end:
        gc.collect()  # maps and files that hang in a reference cycle are the collector's, not leaks
        time.sleep(0.01)
        after = snapshot()
    if found:
        _clean_up(after, before)
        text = "\n  ".join(["the test left behind:", *found])
        if request.node.stash.get(_failed, False):
            request.node.add_report_section("teardown", "leaks", text)
        else:
            pytest.fail(text, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note a failure, for :func:`no_leaks`."""
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Give the session its own temp folder and a token that all processes started by it inherit."""
    # A session inside a session (pytester) must not see the outer one's settings, nor any test the user's.
    for name in [n for n in os.environ if n.startswith(("WORKSPAN_", "DAISY_"))]:
        if name not in ("WORKSPAN_PURE_PYTHON", "WORKSPAN_FULL"):
            del os.environ[name]
    # tmp_path stays where it is by default and keeps the folders of the last three sessions.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # A short name: paths of Unix sockets below it must stay under 104 characters.
    tempfile.tempdir = os.environ["TMPDIR"] = config.stash[_temp_folder] = tempfile.mkdtemp(prefix="wt-")
    # Runs leave a summary in the folder of timings: never in that of the person who runs the tests (E74). Made now, as
    # what a test makes in the temp folder is a leak.
    os.environ["WORKSPAN_TIMING_DIRECTORY"] = timing = os.path.join(tempfile.tempdir, "timing")
    os.mkdir(timing)
    # A run opens a socket for viewers: only in the tests of that, and never where the person's own viewer looks.
    os.environ["WORKSPAN_LIVE_ENABLED"] = "false"
    os.environ.update([_token.decode().split("=")])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the session's temp folder."""
    if folder := config.stash.get(_temp_folder, None):
        shutil.rmtree(folder, ignore_errors=True)
