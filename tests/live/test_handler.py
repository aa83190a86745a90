"""Log records on their way to viewers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workspan import config, live
from workspan.errors import ConfigurationError
from workspan.live import SocketHandler, outlet
from workspan.live.handler import line_of
from workspan.live.server import Server


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger of the test's own, whose handlers are taken away again."""
    made = logging.getLogger("app.test")
    made.setLevel(logging.DEBUG)
    made.propagate = False
    yield made
    for handler in made.handlers[:]:
        made.removeHandler(handler)
        handler.close()


def logs(client: Any, count: int) -> list[dict[str, Any]]:
    """The next *count* log frames."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += client.until(lambda frame: frame["kind"] == "log")
        found = [frame for frame in found if frame["kind"] == "log"]
    return found


def test_a_record_travels(started: Server, connect: Callable[..., Any], logger: logging.Logger) -> None:
    """A record comes with its message formatted, its exception as text and its extras as plain values, from the level
    on (E103, E106, E95)."""
    logger.addHandler(SocketHandler("audit", logging.WARNING))
    client = connect(started.path)
    client.synced()
    logger.info("too low")
    try:
        raise ValueError("bad voxel")
    except ValueError:
        logger.exception("in %s", "block", extra={"key": ("m", None), "dt_est": float("nan"), "workspan": {"id": 3}})
    (frame,) = logs(client, 1)
    assert frame["handler"] == "audit"
    sent = frame["record"]
    assert (sent["name"], sent["levelname"], sent["message"]) == ("app.test", "ERROR", "in block")
    assert sent["exc_text"].startswith("Traceback (most recent call last):")
    assert sent["exc_text"].endswith("ValueError: bad voxel")
    assert frame["extra"] == {"key": ["m", None], "dt_est": None, "workspan": {"id": 3}}


def test_the_viewer_applies_the_format(started: Server, connect: Callable[..., Any], logger: logging.Logger) -> None:
    """A viewer learns the format of each handler, and makes the line with it (E103)."""
    logger.addHandler(SocketHandler("audit", fmt="%(asctime)s %(levelname)-8s %(message)s", datefmt="%Y"))
    client = connect(started.path)
    handler = next(frame for frame in client.synced() if frame["kind"] == "handler")
    logger.warning("hot")
    (frame,) = logs(client, 1)
    frame["record"]["created"] = 0.0
    assert line_of(frame, handler["fmt"], handler["datefmt"]) in ("1970 WARNING  hot", "1969 WARNING  hot")


def test_a_closed_handler_is_forgotten(started: Server, connect: Callable[..., Any]) -> None:
    """Viewers are not told of a handler that is closed (E103)."""
    handler = SocketHandler("audit")
    handler.close()
    assert all(frame["kind"] != "handler" for frame in connect(started.path).synced())


def test_own_records_do_not_enter(started: Server, connect: Callable[..., Any]) -> None:
    """What the sending itself logs is not sent, or it would never end (E112)."""
    own = logging.getLogger(outlet.LOGGER_NAME)
    handler = SocketHandler("audit")
    own.addHandler(handler)
    try:
        client = connect(started.path)
        client.synced()
        outlet.logger.warning("own")
        handler.handle(logging.makeLogRecord({"name": "app", "levelno": 30, "msg": "app"}))
        assert [frame["record"]["message"] for frame in logs(client, 1)] == ["app"]
    finally:
        own.removeHandler(handler)
        handler.close()


def test_what_is_logged_while_sending_is_not_sent(started: Server, connect: Callable[..., Any]) -> None:
    """Code that runs in the sending thread cannot feed it (E112)."""
    handler = SocketHandler("audit")

    def snapshot() -> list[dict[str, Any]]:
        handler.handle(logging.makeLogRecord({"name": "app", "levelno": 30, "msg": "inner"}))
        return []

    live.register_snapshot(snapshot)
    client = connect(started.path)
    client.synced()
    handler.handle(logging.makeLogRecord({"name": "app", "levelno": 30, "msg": "outer"}))
    assert [frame["record"]["message"] for frame in logs(client, 1)] == ["outer"]
    handler.close()


def test_nobody_looks(started: Server) -> None:
    """Without a viewer a record is not even formatted (E109)."""

    class Costly:
        def __str__(self) -> str:
            raise AssertionError

    handler = SocketHandler()
    handler.emit(logging.makeLogRecord({"name": "app", "levelno": 30, "msg": "%s", "args": (Costly(),)}))
    handler.close()


class TestSettings:
    """Handlers that are named in the settings."""

    @pytest.fixture(autouse=True)
    def _as_before(self, place: Path) -> Iterator[None]:
        yield
        config.configure(live={"handlers": {}})
        live.set_up()

    def attached(self, name: str) -> list[str | None]:
        """Names of the handlers of a logger."""
        return [one.name for one in logging.getLogger(name).handlers if isinstance(one, SocketHandler)]

    def test_each_is_attached_once_to_each_logger(self) -> None:
        """However often handlers are set up (E103)."""
        audit = {"level": "ERROR", "loggers": ["app.a", "app.b"], "format": "%(message)s", "datefmt": "%H"}
        config.configure(live={"handlers": {"audit": audit, "other": {"loggers": ["app.a"]}}})
        for _ in range(3):
            live.set_up()
        assert self.attached("app.a") == ["audit", "other"]
        assert self.attached("app.b") == ["audit"]
        (handler,) = (one for one in logging.getLogger("app.b").handlers if isinstance(one, SocketHandler))
        assert (handler.level, handler.fmt, handler.datefmt) == (logging.ERROR, "%(message)s", "%H")

    def test_a_change_takes_effect(self) -> None:
        """What is no longer wanted is taken away, what has changed is replaced (E103, E73)."""
        config.configure(live={"handlers": {"a": {"loggers": ["app.a"]}, "b": {"loggers": ["app.a"]}}})
        live.set_up()
        config.configure(live={"handlers": {"b": {"loggers": ["app.b"]}}})
        live.set_up()
        assert self.attached("app.a") == []
        assert self.attached("app.b") == ["b"]

    def test_it_comes_with_the_start(self) -> None:
        """A program that only begins a step gets its configured handlers too (E103)."""
        config.configure(live={"handlers": {"a": {"loggers": ["app.a"]}}})
        live.start()
        assert self.attached("app.a") == ["a"]

    @pytest.mark.parametrize(
        ("handlers", "says"),
        [
            (3, "is not a table of handlers by name"),
            ({"a/b": {}}, "has the name 'a/b'"),
            ({"a": {"colour": "red"}}, "gives 'a' what is no table of level, format, datefmt, loggers"),
            ({"a": {"level": 1.5}}, "gives 'a' a level"),
            ({"a": {"format": 3}}, "gives 'a' a format"),
        ],
    )
    def test_wrong_settings(self, handlers: Any, says: str) -> None:
        """They are refused with the name of the setting and what would be right (E72, E104)."""
        with pytest.raises(ConfigurationError, match=f"live.handlers=.*{says}"):
            config.configure(live={"handlers": handlers})

    def test_an_unknown_level(self, caplog: pytest.LogCaptureFixture) -> None:
        """Set-up says which handler has a level that does not exist; a start survives it (E20, E72)."""
        config.configure(live={"handlers": {"a": {"level": "LOUD"}}})
        with pytest.raises(ConfigurationError, match=r"'a' has no level that logging knows: .*LOUD"):
            live.set_up()
        live.stop()
        live.start()
        assert "cannot be set up" in caplog.text


def frame(record: dict[str, Any] | None = None, **extra: Any) -> dict[str, Any]:
    """A log frame as it may come."""
    return {"kind": "log", "record": {"message": "hot", "levelname": "INFO", **(record or {})}, "extra": extra}


@pytest.mark.parametrize(
    "fmt",
    [
        "%(message)999999999s",
        "%(message)s %(nothing)s",
        "%(message)*d",
        "%s",
        "%(message",
        "x" * 2000,
        None,
        7,
        "%(levelname)d %(message)s",
    ],
)
def test_hostile_formats(fmt: Any) -> None:
    """A format is data: one that is not plain or does not suit gives way to the message (E107)."""
    assert line_of(frame(), fmt, None) == "hot"


@pytest.mark.parametrize(
    "hostile",
    [
        {"kind": "log"},
        {"kind": "log", "record": 3, "extra": [1]},
        frame({"created": "x", "msecs": "y"}),
        frame({"message": ["a"]}),
        frame({"exc_text": 3, "stack_info": {}}),
        frame(getMessage="x", exc_info=True, args=[1], msg="%d"),
    ],
)
def test_hostile_records(hostile: dict[str, Any]) -> None:
    """Whatever a frame holds, there is a line (E107)."""
    assert isinstance(line_of(hostile, "%(asctime)s %(message)s", "%H"), str)


def test_extras_may_be_shown() -> None:
    """A format may name an extra; it cannot replace a standard attribute (E95)."""
    assert line_of(frame(user="me", levelname="FAKE"), "%(user)s %(levelname)s %(message)s", None) == "me INFO hot"
