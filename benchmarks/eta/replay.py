"""Replays of recorded runs under a clock of their own: through ours, tqdm's and rich's own classes."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from unittest import mock

import rich.progress
import tqdm.std
from oracle import Oracle
from rich.console import Console
from runs import Looker, Recorded

from workspan.estimate.remaining import Remaining

EVERY = 0.5
"""Seconds between two pictures, as of our displays."""
MOST = 1000
"""Pictures of one run."""
BEGIN, ASKED = 25, 40
"""Pictures on which the best possible estimate is asked for: so many at the begin, and so many over the whole run."""


class Clock:
    """A clock that the replay sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Tqdm:
    """A real tqdm bar; what it says is taken from its own text."""

    def __init__(self, run: Recorded, clock: Clock, told: bool) -> None:
        with mock.patch.object(tqdm.std, "time", clock):
            skipped = run.skipped if told else 0
            self.bar = tqdm.std.tqdm(total=run.total, initial=skipped, file=io.StringIO(), ncols=80)
        self.bar.moveto = lambda n: None

    def advance(self, count: int) -> None:
        self.bar.update(count)

    def left(self) -> float | None:
        values = {**self.bar.format_dict, "bar_format": "{remaining}|{remaining_s}"}
        text, _, seconds = tqdm.std.tqdm.format_meter(**values).partition("|")
        return None if text == "?" else float(seconds)

    def close(self) -> None:
        self.bar.close()


class Rich:
    """A real rich progress."""

    def __init__(self, run: Recorded, clock: Clock, told: bool) -> None:
        self.progress = rich.progress.Progress(console=Console(file=io.StringIO()), get_time=clock, auto_refresh=False)
        self.task = self.progress.add_task("run", total=run.total, completed=run.skipped if told else 0)

    def advance(self, count: int) -> None:
        self.progress.update(self.task, advance=count)

    def left(self) -> float | None:
        return self.progress.tasks[0].time_remaining

    def close(self) -> None:
        self.progress.stop()


@dataclass
class Score:
    """How far a display was off, in seconds, over one or several runs; each run counts alike."""

    ours: dict[str, list[float]] = field(default_factory=dict)
    peers: dict[str, list[float]] = field(default_factory=dict)
    held: int = 0
    ranges: int = 0
    silent: list[float] = field(default_factory=list)
    wide: list[float] = field(default_factory=list)
    best: dict[str, list[float]] = field(default_factory=dict)
    """The least error that is possible."""
    best_peers: dict[str, list[float]] = field(default_factory=dict)
    """The peer's error on the same pictures."""

    def add(self, other: Score) -> None:
        for mine, its in (
            (self.ours, other.ours),
            (self.peers, other.peers),
            (self.best, other.best),
            (self.best_peers, other.best_peers),
        ):
            for name, values in its.items():
                mine.setdefault(name, []).extend(values)
        self.held, self.ranges = self.held + other.held, self.ranges + other.ranges
        self.silent += other.silent
        self.wide += other.wide


def replay(
    run: Recorded,
    *,
    predict=None,
    spread=None,
    first_extra=0.0,
    stragglers=None,
    places=(),
    drift: float | None = None,
    told: bool = False,
    trace=None,
) -> Score:
    """Show one run on all displays, and compare at each picture on which a peer says something.

    *predict* and what comes behind it is known from earlier runs; *drift* is by how much these were slower.
    Where ours is silent and the peer is not, ours counts as having said 0.
    """
    clock = Clock()
    looker = Looker(run, predict, places)
    ours = Remaining(
        len(looker.measures),
        history=None if predict is None else 0,
        history_spread=spread,
        first_extra=first_extra,
        stragglers=stragglers,
    )
    peers = {"tqdm": Tqdm(run, clock, told), "rich": Rich(run, clock, told)}
    if run.skipped and not told:
        for peer in peers.values():
            peer.advance(run.skipped)
    errors: dict[str, list[tuple[float, float]]] = {name: [] for name in peers}
    score = Score()
    step = max(EVERY, run.ended / MOST)
    oracle = None if run.law is None else Oracle(run, looker, run.law, told=drift)
    asked = max(1, round(run.ended / step / ASKED))
    best: dict[str, list[tuple[int, float, float]]] = {name: [] for name in peers}
    number, silent, pictures = 0, 0, 0
    ends = [block[3] for block in run.blocks]
    picture = 0.0
    while picture < run.ended:
        while number < len(ends) and ends[number] <= picture:
            clock.now = ends[number]
            for peer in peers.values():
                peer.advance(1)
            number += 1
        clock.now = picture
        ours.look(looker.look(picture))
        truth, left = run.ended - picture, ours.left(picture)
        said = {name: peer.left() for name, peer in peers.items()}
        pictures += 1
        silent += left is None
        for name, value in said.items():
            if value is not None:
                errors[name].append((abs((left.value if left else 0.0) - truth), abs(value - truth)))
        stands_for = 1 if pictures <= BEGIN else asked if pictures % asked == 0 else 0
        if oracle is not None and stands_for and any(value is not None for value in said.values()):
            least = oracle.error(picture, truth)
            for name, value in said.items():
                if value is not None:
                    best[name].append((stands_for, least, abs(value - truth)))
        if left is not None and left.low is not None and left.high is not None:
            score.ranges += 1
            score.held += left.low <= truth <= left.high
            score.wide.append((left.high - left.low) / run.ended)
        if trace is not None:
            trace(picture, truth, left, said)
        picture += step
    for name, peer in peers.items():
        peer.close()
        if errors[name]:
            score.ours[name] = [sum(a for a, _ in errors[name]) / len(errors[name])]
            score.peers[name] = [sum(b for _, b in errors[name]) / len(errors[name])]
        if best[name]:
            count = sum(stands_for for stands_for, _, _ in best[name])
            score.best[name] = [sum(n * a for n, a, _ in best[name]) / count]
            score.best_peers[name] = [sum(n * b for n, _, b in best[name]) / count]
    score.silent.append(silent / max(pictures, 1))
    return score
