"""The deadline that a worker keeps by itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from time import monotonic

import pytest

from workspan.engines.watchdog import EXIT_CODE, Watchdog

HEAD = """
import ctypes, os, re, sys, time
from workspan.engines import watchdog
from workspan.engines.watchdog import Watchdog
watchdog.BACKSTOP_SECONDS = 0.3
dog = Watchdog()
"""


def run(code, **kwargs):
    """Run *code* in a process of its own, and return it with the seconds that it took."""
    before = monotonic()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run([sys.executable, "-c", HEAD + code], capture_output=True, text=True, env=env, timeout=120)
    return done, monotonic() - before


def test_python_that_does_not_end():
    """B83: exit code 87, one line on the error stream, and no cleanup handlers."""
    done, _ = run("""
import atexit
atexit.register(print, "cleaned up")
dog.arm(0.1, "block 7 of task 'a'")
try:
    while True:
        pass
finally:
    print("finally")
""")
    assert done.returncode == EXIT_CODE == 87
    assert done.stderr == "block 7 of task 'a' was not finished within its timeout of 0.1 s: this worker ends\n"
    assert done.stdout == ""


@pytest.mark.parametrize(
    "call", ["ctypes.PyDLL(None).sleep(30)", "re.match('(a*)*b', 'a' * 40)"], ids=["C call", "regular expression"]
)
def test_a_call_that_keeps_the_interpreter(call):
    """B83: the process ends although no thread of Python can run, and shows where it was."""
    done, seconds = run(f"dog.arm(0.1, 'block')\n{call}\nprint('went on')")
    assert done.returncode in (-signal.SIGALRM, EXIT_CODE)
    assert seconds < 20
    assert done.stdout == ""
    assert re.search(r"most recent call first|was not finished", done.stderr)


def test_disarmed_it_does_nothing():
    """B83: a block that was returned in time has no deadline any more."""
    done, _ = run("dog.arm(0.5, 'block')\ndog.disarm()\ntime.sleep(0.8)\nprint('alive')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def test_each_block_has_its_own_deadline():
    """B83: an earlier deadline than the last one is kept too, and the right block is named."""
    done, _ = run("""
for n in range(5):
    dog.arm(30, f"block {n}")
    dog.disarm()
time.sleep(0.05)
dog.arm(0.1, "block 5")
time.sleep(20)
""")
    assert done.returncode == EXIT_CODE
    assert done.stderr.startswith("block 5 was not")


def test_many_short_blocks():
    """Arming and disarming costs no threads, and the last block's deadline holds."""
    done, _ = run("""
import threading
for n in range(300):
    dog.arm(5, f"block {n}")
    dog.disarm()
assert threading.active_count() == 2, threading.enumerate()
dog.arm(0.1, "the last")
time.sleep(20)
""")
    assert done.returncode == EXIT_CODE, done.stderr
    assert done.stderr.startswith("the last was not")


@pytest.mark.parametrize("seconds", [None, 1e7, 1e10])
def test_no_deadline(seconds):
    """Without a timeout, or with one of months, no thread is started."""
    threads = threading.active_count()
    dog = Watchdog(lambda code: None)
    dog.arm(seconds, "block")
    assert threading.active_count() == threads
    dog.disarm()


@pytest.mark.parametrize("end", ["sys.exit(5)", "dog.disarm(); sys.exit(5)", "os._exit(5)"])
def test_a_fork_in_mid_block_ends_as_it_likes(end):
    """B83: the deadline is the worker's; what it forks neither has one nor hangs at its end."""
    done, _ = run(f"""
dog.arm(2, "block")
child = os.fork()
if not child:
    {end}
end = time.monotonic() + 20
while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
    time.sleep(0.01)
dog.disarm()
print(os.waitstatus_to_exitcode(ended[1]) if ended[0] else "hangs")
if not ended[0]:
    os.kill(child, 9)
""")
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr


def test_a_fork_does_not_save_the_worker():
    """B83: after a fork the worker's deadline is still kept, in C too."""
    done, seconds = run("""
dog.arm(0.3, "block")
if not os.fork():
    os._exit(0)
os.wait()
ctypes.PyDLL(None).sleep(30)
""")
    assert done.returncode in (-signal.SIGALRM, EXIT_CODE)
    assert seconds < 20


def test_a_program_that_uses_the_alarm_clock_keeps_it():
    """B83: where SIGALRM has a handler the alarm clock is not touched, and the thread keeps watch alone."""
    done, _ = run("""
import signal
signal.signal(signal.SIGALRM, lambda number, frame: print("mine"))
signal.setitimer(signal.ITIMER_REAL, 0.2)
dog.arm(30, "block")
dog.disarm()
time.sleep(1)
dog.arm(0.1, "block")
time.sleep(20)
""")
    assert (done.returncode, done.stdout) == (EXIT_CODE, "mine\n")


def test_a_fork_can_be_given_a_deadline_of_its_own():
    """A forked process that takes blocks itself is watched again."""
    done, _ = run("""
dog.arm(5, "block")
child = os.fork()
if not child:
    dog.arm(0.1, "its own")
    time.sleep(20)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
dog.disarm()
""")
    assert (done.returncode, done.stdout) == (0, "87\n")
    assert "its own was not finished" in done.stderr


def test_closed_it_leaves_no_thread():
    """A client that has left keeps nothing, however soon it leaves after its first block."""
    done, _ = run("""
import threading
for n in range(300):
    other = Watchdog()
    other.arm(20, "block")
    other.close()
    other.close()
end = time.monotonic() + 10
while threading.active_count() > 1 and time.monotonic() < end:
    time.sleep(0.01)
print(threading.active_count())
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
