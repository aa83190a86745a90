"""What `import workspan` costs and does: next to nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import workspan

HEAVY = {"numpy", "zarr", "pyarrow", "scipy", "skimage", "rich", "cyclopts", "asyncio"}
WORKER_ROOMS = {"measure", "grid", "engines", "errors"}

COST = """
import time
begin = time.process_time()
import workspan
cost = time.process_time() - begin
import json, sys
print(json.dumps({"cost": cost, "modules": sorted(sys.modules)}))
"""

# Only what happens within the import statement counts; reading is what an import does.
EFFECTS = """
import _thread, os, sys
watching, seen = False, []
def wrap(name):  # Python 3.11 raises no audit event for a thread; `threading` is not loaded yet and takes these
    start = getattr(_thread, name)
    setattr(_thread, name, lambda *args, **kwargs: (seen.append(name), start(*args, **kwargs))[1])
for name in {"start_new_thread", "start_joinable_thread"} & {*vars(_thread)}:
    wrap(name)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
DOING = ("socket.", "subprocess.", "tempfile.", "shutil.", "os.fork", "os.posix_spawn", "os.exec",
         "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.utime")
def hook(event, args):
    if watching and (event.startswith(DOING) or event == "open" and args[2] & WRITING):
        seen.append(f"{event} {args!r}")
sys.addaudithook(hook)
watching = True
ACTION
watching = False
import json
print(json.dumps(seen))
"""


def fresh(code: str, *options: str) -> Any:
    """Run code in a new interpreter without this one's settings; return what it prints."""
    done = subprocess.run([sys.executable, "-I", *options, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_import_costs_at_most_100_ms_of_cpu() -> None:
    """The best of five fresh interpreters (the first one also compiles) spends at most 100 ms of CPU (D15)."""
    costs = [fresh(COST)["cost"] for _ in range(5)]
    assert min(costs) <= 0.100, costs


def test_import_loads_no_heavy_library() -> None:
    """None of the heavy libraries is loaded before its first use (D15)."""
    assert HEAVY.isdisjoint(fresh(COST)["modules"])


def test_the_worker_loads_its_own_side_only() -> None:
    """A worker loads rooms about measuring, the grid and the wire before its first block, and nothing heavy (D28)."""
    loaded = fresh(COST.replace("import workspan", "import workspan.engines.worker"))["modules"]
    rooms = {name.split(".")[1] for name in loaded if name.startswith("workspan.")}
    assert "engines" in rooms
    assert rooms <= WORKER_ROOMS
    assert HEAVY.isdisjoint(loaded)


def test_import_has_no_side_effect() -> None:
    """Importing starts no thread or process, opens no socket and writes no file (R68)."""
    # -B: compiled files are Python's doing, and would be written by the first import only.
    assert fresh(EFFECTS.replace("ACTION", "import workspan"), "-B") == []


def test_the_audit_hook_notices_side_effects() -> None:
    """The hook of the test above reports a thread, a socket, a process and a written file (R68)."""
    action = "import threading, socket, subprocess, tempfile; threading.Thread(target=int).start(); socket.socket()"
    action += "; subprocess.run(['true']); tempfile.TemporaryFile()"
    seen = " ".join(fresh(EFFECTS.replace("ACTION", action), "-B"))
    for event in ("start_", "socket.__new__", "subprocess.Popen", "open "):
        assert event in seen


def test_every_public_name_resolves() -> None:
    """Each name of the public list exists and is shown by dir(); the list is sorted (D50)."""
    for name in workspan.__all__:
        assert getattr(workspan, name) is not None
    assert set(workspan.__all__) <= set(dir(workspan))
    assert workspan.__all__ == sorted(workspan.__all__)


@pytest.mark.parametrize("package", ["workspan", "workspan.engines", "workspan.estimate", "workspan.live"])
def test_importing_a_module_hides_no_public_name(package: str) -> None:
    """Each name is the same whether or not all modules beside it were imported before, some of which share its name."""
    code = f"""
import importlib, json, pkgutil, {package} as package
if LOAD:
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if "__main__" not in found.name:
            importlib.import_module(found.name)
print(json.dumps([[name, type(getattr(package, name)).__name__] for name in package.__all__]))
"""
    assert fresh(f"LOAD = True{code}") == fresh(f"LOAD = False{code}")


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A name that is not there is refused with the name in the message, not by a failing import."""
    with pytest.raises(AttributeError, match="no_such_thing"):
        workspan.no_such_thing  # noqa: B018
