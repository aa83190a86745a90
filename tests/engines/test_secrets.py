"""Nobody learns the secret of a connection, and nobody else can use one."""

from __future__ import annotations

import base64
import os
import socket
from pathlib import Path

from workspan.engines import Processes
from workspan.engines import child as child_module
from workspan.engines.wire import Grant

SECRET = bytes(range(100, 132))


def leaves_traces(block):
    """Write whatever a block may write."""
    print(vars(__import__("__main__")).keys(), os.environ)
    if block.index == 1:
        raise ValueError("look at this traceback")


def test_secret_is_nowhere_to_be_seen(make_run, monkeypatch, log_dir):
    """The secret is in no argument, environment, log or message, in no spelling (R47, D6)."""
    monkeypatch.setattr(child_module.wire, "new_secret", lambda: SECRET)
    run = make_run(Processes(), leaves_traces)
    run.start()
    run.block(0)
    failed = run.block(1)
    pid = run.engine._children[0].pid
    places = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
    run.engine.stop_worker(0)
    places.append(repr((failed, run.ended())).encode())
    places += [path.read_bytes() for path in log_dir.rglob("*") if path.is_file()]
    assert len(places) == 5
    for spelling in (SECRET, SECRET.hex().encode(), base64.b64encode(SECRET), repr(SECRET).encode()):
        assert not [place for place in places if spelling in place]


def test_each_worker_has_its_own_secret(make_run):
    """What one worker knows is of no use against another."""
    run = make_run(Processes(), leaves_traces)
    run.start(0)
    run.start(1)
    first, second = (run.engine._children[n] for n in (0, 1))
    assert first.line.sealer.seal(Grant(0)) != second.line.sealer.seal(Grant(0))


def test_nothing_listens(make_run):
    """Own workers need no listener: neither driver nor worker has a socket that others could connect to (R37)."""
    run = make_run(Processes(), leaves_traces)
    run.start()
    for pid in ("self", run.engine._children[0].pid):
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except FileNotFoundError:
                continue
            inode = target.removeprefix("socket:[").removesuffix("]")
            assert inode not in listening_inodes()


def listening_inodes():
    """Return the inodes of all listening sockets."""
    found = set()
    for kind in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A":
                found.add(fields[9])
    for row in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = row.split()
        if int(fields[3], 16) & 0x10000:  # SO_ACCEPTCON
            found.add(fields[6])
    return found


def test_listening_sockets_are_found():
    """The test above would see a listener."""
    before = listening_inodes()
    with socket.create_server(("127.0.0.1", 0)):
        assert listening_inodes() - before
