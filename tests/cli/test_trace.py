"""``workspan trace``: a file that is there whole or not at all, and spans that arrive."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from helpers.recorded import record
from workspan.cli import main

WALLS = np.linspace(0.1, 0.2, 10)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store of ten blocks with one step."""
    record(tmp_path / "store", WALLS, steps={"read": WALLS / 2})
    return str(tmp_path / "store")


def slices(text: str) -> int:
    """Number of blocks in a trace."""
    return sum(event.get("cat") == "block" for event in json.loads(text)["traceEvents"])


def test_a_file(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trace is written, nothing else is left, and the line says where to open it (issue 10)."""
    out = tmp_path / "out" / "trace.json"
    out.parent.mkdir()
    assert main(["trace", store, "-o", str(out)]) == 0
    assert slices(out.read_text()) == 10
    assert [path.name for path in out.parent.iterdir()] == ["trace.json"]
    assert "10 blocks" in capsys.readouterr().out


def test_histories_beside_logs(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that tracked nothing, whose history lies with their logs, are no part of a folder's trace (issue 10)."""
    record(tmp_path / "workspan_logs" / "plain", WALLS, task_id="plain")
    for path in list((tmp_path / "workspan_logs" / "plain").iterdir()):
        if path.name != "runs.jsonl":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (tmp_path / "run").mkdir()
    Path(store).rename(tmp_path / "run" / "smooth")
    monkeypatch.chdir(tmp_path)
    assert main(["trace", ".", "-o", "trace.json"]) == 0
    assert "plain" not in (tmp_path / "trace.json").read_text()


@pytest.mark.parametrize("words", [["-o", "trace.json.gz"], ["-o", "trace.json.gz", "--gzip"]])
def test_compressed(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """A name that ends with .gz, or --gzip, compresses (issue 10)."""
    monkeypatch.chdir(tmp_path)
    assert main(["trace", store, *words]) == 0
    assert slices(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()).decode()) == 10


def test_the_limit_is_told(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was left out is said on the terminal, too (R54)."""
    assert main(["trace", store, "-o", str(tmp_path / "t.json"), "--limit", "3"]) == 0
    assert "Only the 3 blocks" in capsys.readouterr().out
    assert slices((tmp_path / "t.json").read_text()) == 3


@pytest.mark.parametrize(
    "words", [["none"], ["store", "-o", "."], ["store", "--limit", "0"], ["store#r9"], ["store", "--otlp", "localhost"]]
)
def test_refusals(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """What cannot be read or written is refused, and no file is left (D39)."""
    monkeypatch.chdir(tmp_path)
    assert main(["trace", *words]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


class _Collector(BaseHTTPRequestHandler):
    """Keeps what it is sent."""

    def do_POST(self) -> None:
        self.server.bodies.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[HTTPServer]:
    """A collector on the loopback."""
    with HTTPServer(("127.0.0.1", 0), _Collector) as server:
        server.bodies = []
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_spans(store: str, collector: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A run arrives as one trace: run, task, blocks, steps, each inside its parent (issue 10)."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    assert main(["trace", store, "--otlp", f"http://127.0.0.1:{collector.server_port}"]) == 0
    ((path, body),) = collector.bodies
    assert path == "/v1/traces"
    request = ExportTraceServiceRequest.FromString(body)
    spans = {span.span_id: span for part in request.resource_spans for s in part.scope_spans for span in s.spans}
    assert f"{len(spans)} spans" in capsys.readouterr().out
    assert len({span.trace_id for span in spans.values()}) == 1
    names = [span.name for span in spans.values()]
    assert [names.count(name) for name in ("run", "smooth", "read", "startup", "teardown")] == [1, 1, 10, 2, 2]
    assert sum(name.startswith("block ") for name in names) == 10
    for span in spans.values():
        parent = spans.get(span.parent_span_id)
        assert (parent is None) == (span.name == "run")
        if parent is not None:
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
            assert span.start_time_unix_nano <= span.end_time_unix_nano <= parent.end_time_unix_nano


def test_spans_need_the_extra(store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the extra the text names the option and how to install it (house style, errors)."""
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert main(["trace", store, "--otlp", "http://127.0.0.1:1"]) == 2
    assert "pip install 'workspan[otel]'" in capsys.readouterr().err
