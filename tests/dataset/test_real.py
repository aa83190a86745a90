"""More data than memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import workspan as ws

SMALL = """
import resource
import numpy as np
import workspan as ws
data = ws.range({rows}, blocks={blocks}).map_batches(lambda batch: {{"id": batch["id"] + 1}})
assert sum(batch["id"].shape[0] for batch in ws.range(10).iter_batches(engine="serial")) == 10
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + {limit}, resource.RLIM_INFINITY))
try:  # now, as later on the memory may be less that was in use when the limit was set
    np.ones({limit} // 8 * 5 // 4)
except MemoryError:
    print("the limit holds")
total = rows = 0
for batch in data.iter_batches(engine="serial", ahead=2):
    total += int(batch["id"].sum())
    rows += len(batch["id"])
n = {rows}
assert (rows, total) == (n, n * (n + 1) // 2), (rows, total)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits and tells the memory of a process so")
def test_more_data_than_memory_streams_through(tmp_path: Path) -> None:
    """160 MB of rows go through a process that may not take more than 16 MB besides what its libraries have (M59)."""
    limit = 16 << 20
    script = SMALL.format(rows=10 * limit // 8, blocks=160, limit=limit)
    environment = {**os.environ, "PYTHONPATH": str(Path(ws.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=140)
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", "the limit holds")
