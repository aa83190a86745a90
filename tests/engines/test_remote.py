"""What engines on clusters share: the messages, and who holds what, whatever a cluster does."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.engine_kit import line
from workspan.engines import Job, WorkerTask, remote, wire
from workspan.engines.remote import Ending, Found, Kill, Lost, Placed, Recall, Roster
from workspan.errors import EngineError
from workspan.measure.notes import Note
from workspan.measure.profile import BlockStats
from workspan.schedule.events import Ended, Ready, Returned, TakenBack


def placed(worker: int = 0, token: str = "a", place: str = "here") -> Placed:
    return Placed(worker, token, place, "host", 1, True)


@pytest.fixture
def roster() -> Roster:
    """Worker 0, which is ready and was sent the blocks 5, 6 and 7."""
    made = Roster()
    made.add(0, 0, 0.0)
    made.take([placed(), Ready(0)], 1.0)
    for index in (5, 6, 7):
        made.grant(0, index)
    return made


def test_messages_arrive_as_they_were_sent() -> None:
    """R45: commands and reports are typed data that survive the way there and back."""
    commands: list[Any] = [wire.Grant(2**40), wire.Stop(), Recall(), Kill(0.5)]
    assert remote.unpack_commands(remote.pack_commands(commands)) == commands
    note = Note(("m", "f", None), "O_N", None, None, 3.0, 0.5, 1e9, 0, False)
    reports: list[Any] = [
        placed(),
        Ready(0),
        Returned(0, 3, True, None, BlockStats(1.0, None, 2, 3, 4), {"step": (0.5, 2)}),
        TakenBack(0, (1, 2)),
        Found(0, [note]),
        Ending(Ended(0, False, "why", 3, "tail", (4,)), 9),
        Lost(0, None, "gone"),
    ]
    found = remote.unpack_reports(remote.pack_reports(reports))
    assert repr(found) == repr(reports)  # a NaN is not equal to itself


def test_what_is_no_report_is_refused() -> None:
    """R42, R46: a report that cannot be read is an error in words, whoever sent it."""
    with pytest.raises(EngineError, match="a report that this driver cannot read"):
        remote.unpack_reports(remote.pack_commands([wire.Grant(1)]))


def test_a_loss_is_told_once_and_nothing_after_it(roster: Roster) -> None:
    """R9: after its end a worker's results are ignored, and a second loss is no second end."""
    lost = Lost(0, "a", "gone")
    assert roster.take([Returned(0, 5, True), lost, Returned(0, 6, True), lost], 2.0) == (
        [Returned(0, 5, True), Ended(0, False, "gone")],
        [],
    )
    assert roster.grant(0, 9) is None


def test_the_loss_of_an_earlier_host_is_not_its_successors(roster: Roster) -> None:
    """R70: a loss names its host; that of another one is ignored."""
    assert roster.take([Lost(0, "b", "gone")], 2.0) == ([], [])


def test_a_second_host_is_turned_away(roster: Roster) -> None:
    """R70: a cluster that runs a worker a second time has lost the first one; the copy gets no block."""
    copy = placed(token="b", place="there")
    events, strangers = roster.take([copy], 2.0)
    assert strangers == [copy]
    assert [(event.worker, type(event)) for event in events] == [(0, Ended)]
    assert roster.take([copy], 2.0) == ([], [copy])


def test_blocks_that_never_arrived_are_no_attempts(roster: Roster) -> None:
    """D4: what the host was never sent, and what it says it never began, is unstarted; the block that ran is not."""
    (event,), _ = roster.take([Ending(Ended(0, False, "killed", unstarted=(6,)), 2)], 2.0)
    assert isinstance(event, Ended)
    assert event.unstarted == (6, 7)


def test_a_result_out_of_turn_is_ignored(roster: Roster) -> None:
    """R9: only the block that runs can be returned."""
    assert roster.take([Returned(0, 6, True)], 2.0) == ([], [])
    assert list(roster.seats[0].held) == [5, 6, 7]


def test_only_a_worker_that_idles_makes_room() -> None:
    """R10: for a worker of another task, when both have waited; what is sent to it then was never begun."""
    roster = Roster()
    roster.add(0, 0, 0.0)
    roster.take([placed(), Ready(0)], 1.0)
    assert roster.replaceable(9.0, 2.0) is None
    roster.add(1, 0, 1.0)
    assert roster.replaceable(9.0, 2.0) is None
    roster.add(2, 1, 8.0)
    assert roster.replaceable(9.0, 2.0) is None
    seat = roster.replaceable(10.0, 2.0)
    assert seat is roster.seats[0]
    seat.withdrawn = True
    assert roster.grant(0, 3) is None
    (event,), _ = roster.take([Ending(Ended(0, True, "exit code 0"), 0)], 11.0)
    assert event == Ended(0, True, "made room for a worker of another task", unstarted=(3,), withdrawn=True)


def test_another_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """R10: functions by value cannot be sent between versions of Python, and the error names both."""
    task = WorkerTask("t", line(), print)
    (start,) = remote.start_values(Job("r", (task,)), kill_seconds=1.0, start_seconds=1.0)
    remote.check_match(start)
    with pytest.raises(EngineError, match=r"runs there, the driver has 2\.7: functions can be sent between equal"):
        remote.check_match({**start, "python": [2, 7]})


def test_a_place_that_is_withdrawn_costs_no_start() -> None:
    """D3: only deaths use the restart budget; a worker whose place was taken in good order is replaced for free."""
    from helpers.runs import line as task_on
    from workspan.run.pipeline import Pipeline
    from workspan.schedule.dispatch import Dispatcher
    from workspan.schedule.events import StartWorker
    from workspan.schedule.ledger import Ledger

    class Silent:
        def __getattr__(self, name: str) -> Any:
            return lambda *args, **kwargs: None

    task = task_on(3, print, max_workers=1, max_worker_restarts=0)
    dispatcher = Dispatcher(Ledger(Pipeline.of(task).spec()), Silent(), wire_seconds=0.005)
    assert [type(decision) for decision in dispatcher.start(0.0)] == [StartWorker]
    for worker in range(3):
        dispatcher.handle(Ready(worker), 1.0)
        assert dispatcher.slots[worker].held
        decisions = dispatcher.handle(Ended(worker, True, "left", unstarted=(0,), withdrawn=True), 2.0)
        assert decisions == [StartWorker(worker + 1, 0)]


def test_a_word_names_an_engine() -> None:
    """D26: "dask://host:8786" means the cluster there; nothing is connected to yet, and no address is an error."""
    from workspan.engines import Dask
    from workspan.engines.choose import engine_of
    from workspan.engines.dask import scheduler_address
    from workspan.errors import ConfigurationError

    assert isinstance(engine_of("dask"), Dask)
    assert isinstance(engine_of("dask://there:8786"), Dask)
    assert scheduler_address("dask://there:8786") == "tcp://there:8786"
    with pytest.raises(ConfigurationError, match="engine='dask://' has no address: give host and port"):
        engine_of("dask://")


@pytest.mark.parametrize(
    ("requires", "places", "lack"),
    [
        ({}, [{}], ""),
        ({"GPU": 2}, [{"GPU": 1}, {"GPU": 2}], ""),
        ({"GPU": 2}, [{"GPU": 1}, {"CPU": 8}], "2 GPU"),
        ({"GPU": 1, "scanner": 1}, [{"GPU": 1}], "1 scanner"),
        ({"GPU": 1, "scanner": 1}, [{}], "1 GPU and 1 scanner"),
        ({"GPU": 1, "scanner": 1}, [{"GPU": 1}, {"scanner": 1}], "1 GPU and 1 scanner together"),
    ],
)
def test_what_no_place_has_is_named(requires: dict[str, int], places: list[dict[str, float]], lack: str) -> None:
    """R70: only what no place has at all, busy or not, is lacking; or else that no one has all of it."""
    assert remote.lack_of(requires, places) == lack
