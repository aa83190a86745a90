"""`workspan worker`: guests from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.client_kit import line_task, serving
from helpers.engine_kit import Gate, wait_until
from workspan.cli import main

pytestmark = pytest.mark.usefixtures("logs")

SECONDS = 120


@pytest.fixture
def gates(tmp_path):
    """Two gates: a block is inside, and may go on."""
    return Gate(tmp_path / "inside"), Gate(tmp_path / "release")


@pytest.fixture
def busy(tmp_path, gates):
    """A run of one worker that is in the middle of block 0; who else does blocks leaves a file."""
    inside, release = (Path(gate.path) for gate in gates)
    folder = tmp_path / "done"
    folder.mkdir()

    def work(block):
        if block.index == 0:
            inside.write_text("here\n")
            release.read_text()
        else:
            (folder / f"{block.index}.{os.getpid()}").touch()

    task = line_task(8, work, max_workers=1, tracking_path=tmp_path / "store", resource_tracking=True)
    with serving(task) as run:
        gates[0].wait()
        try:
            run.folder = folder
            run.file = tmp_path / "context"
            run.file.write_text(run.context().to_env() + "\n")
            yield run
        finally:
            gates[1].open()


def start(file, *words, **kwargs):
    """Start `workspan worker` in a process of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-m", "workspan", *words, "worker", "--context", str(file)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, **kwargs)


def test_a_guest_of_a_task_with_a_block_function(busy, gates, tmp_path):
    """B45: it does what is left while the own worker is busy, is measured alike, and leaves when all is done."""
    guest = start(busy.file, cwd=tmp_path)
    try:
        wait_until(lambda: len(list(busy.folder.iterdir())) == 7, "the guest has done the other blocks", SECONDS)
        assert {path.suffix for path in busy.folder.iterdir()} == {f".{guest.pid}"}
    finally:
        gates[1].open()
        out, err = guest.communicate(timeout=SECONDS)
    gates[1].open = lambda: None
    report = busy.wait()
    assert (guest.returncode, out, err) == (0, "", "")
    assert (report["t"].blocks.count, report["t"].blocks.wall.n) == (8, 8)
    assert report["t"].workers.unmanaged_clients == 1


def test_a_function_file_that_was_changed_is_not_loaded(busy, tmp_path):
    """R45, R47: nothing of it is executed."""
    context = busy.context()
    path = Path(context["function_file"])
    data = path.read_bytes()
    trap = f"cos\nsystem\n(S'touch {tmp_path}/trapped'\ntR.".encode()
    for content in (data[:32] + trap, bytes(32) + data[32:]):
        path.write_bytes(content)
        guest = start(busy.file)
        _, err = guest.communicate(timeout=SECONDS)
        assert guest.returncode == 2
        assert "was not written by this run: nothing of it was loaded" in err
    assert not (tmp_path / "trapped").exists()
    assert not list(busy.folder.iterdir())
    assert os.system(f"touch {tmp_path}/trapped") == 0  # the trap would have worked


def test_a_secret_that_others_can_read_is_refused(busy, capsys):
    """R47: the command ends before it connects."""
    secret = Path(busy.context()["secret_file"])
    secret.chmod(0o644)
    assert main(["worker", "--context", str(busy.file)]) == 2
    assert "can be read by others than you" in capsys.readouterr().err


def test_a_task_without_a_block_function(tmp_path, capsys):
    """B86: there is nothing that could run here, and the command says what to do instead."""
    with serving(line_task(1, None)) as run:
        (tmp_path / "context").write_text(run.context().to_env())
        assert main(["worker", "--context", str(tmp_path / "context")]) == 2
    err = capsys.readouterr().err
    assert "task 't' has no block function that could run here" in err
    assert "Client(Context.from_file(...))" in err


@pytest.mark.parametrize("content", [None, "no context"])
def test_a_file_that_is_no_context(tmp_path, capsys, content):
    """The command is refused with one line."""
    if content is not None:
        (tmp_path / "context").write_text(content)
    assert main(["worker", "--context", str(tmp_path / "context")]) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "context" in err


def test_a_run_that_is_over(tmp_path):
    """B98: a straggler ends cleanly."""
    with serving(line_task(2, lambda block: None)) as run:
        try:
            context = run.context()
        except Exception:
            pytest.skip("the run was too fast")
        (tmp_path / "context").write_text(context.to_env())
        run.wait()
    guest = start(tmp_path / "context")
    _, err = guest.communicate(timeout=SECONDS)
    assert guest.returncode == 0
    assert "is over" in err
