"""Drawings that need no script: SVG, coloured by the style sheet of the page, with their figures in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from workspan.report.page import speedup_bounds
from workspan.views.format import count, long_duration
from workspan.views.html.fragment import safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workspan.report.page import Bounds

__all__ = ["history", "speedup", "worker_counts"]

_WIDTH, _HEIGHT = 480, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 18, 16, 42


def worker_counts(work: float, span: float, here: int) -> list[int]:
    """Return the numbers of workers that are worth a line: doubled until more cannot help, and those of the run."""
    most = max(2 * here, min(4096, 2 * math.ceil(work / span) if span > 0 else 1), 2)
    found = {2**power for power in range(13) if 2 ** (power - 1) < most}
    return sorted(found | ({here} if here else set()))


def speedup(work: float, span: float, *, wall: float | None, workers: int | None) -> str:
    """Return the curve of the speed-up over the number of workers, as a band between two bounds.

    Parameters
    ----------
    work, span
        Of the run, in seconds.
    wall
        What the run took; ``None``: not to be shown.
    workers
        With how many workers; ``None``: the tasks had different ones.
    """
    most = worker_counts(work, span, workers or 1)[-1]
    steps = 48
    at = sorted({max(1, round(most ** (n / steps))) for n in range(steps + 1)})
    bounds = speedup_bounds(work, span, at)
    top = max(2.0, 1.15 * work / bounds[-1].least_seconds)
    took = work / wall if wall else None
    low = min(1.0, took or 1.0) / 1.15
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(number: float) -> float:
        return _LEFT + (right - _LEFT) * math.log(number) / math.log(most)

    def y(speed: float) -> float:
        return bottom - (bottom - _TOP) * math.log(speed / low) / math.log(top / low)

    upper = [(x(b.workers), y(work / b.least_seconds)) for b in bounds]
    lower = [(x(b.workers), y(work / b.most_seconds)) for b in bounds]
    out = [
        f'<svg class="chart" role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-label="{safe(_told(work, span, wall))}">',
        *_grid_x([(x(n), f"{n:,}") for n in _doublings(most)], "workers"),
        *_grid_y([(y(n), f"{n:,}×") for n in _doublings(int(top))]),
        f'<polygon class="band" points="{_points([*upper, *reversed(lower)])}"/>',
        f'<polyline class="line" points="{_points(upper)}"/>',
        f'<polyline class="line faint" points="{_points(lower)}"/>',
    ]
    if took is not None:
        out.append(f'<line class="mark" x1="{_LEFT}" x2="{right}" y1="{y(took):.1f}" y2="{y(took):.1f}"/>')
        text = f"this run: {took:.1f}×"
        if workers:
            out.append(f'<circle class="dot" cx="{x(workers):.1f}" cy="{y(took):.1f}" r="5"/>')
            text += f" with {count(workers, 'worker')}"
        above = y(took) - 8 if y(took) > _TOP + 20 else y(took) + 16
        out.append(f'<text class="note" x="{right}" y="{above:.1f}" text-anchor="end">{safe(text)}</text>')
    return "".join([*out, "</svg>"])


def _told(work: float, span: float, wall: float | None) -> str:
    text = (
        f"Speed-up over workers: work {long_duration(work)}, span {long_duration(span)}, "
        f"so never more than {work / span:.1f} times one worker"
    )
    return text if wall is None else f"{text}; this run reached {work / wall:.1f} times"


def speedup_rows(bounds: Sequence[Bounds], work: float) -> list[list[str]]:
    """Return the bounds as text, a row a number of workers."""
    return [
        [
            f"{b.workers:,}",
            f"{long_duration(b.least_seconds)} to {long_duration(b.most_seconds)}",
            f"{work / b.most_seconds:.1f}× to {work / b.least_seconds:.1f}×",
        ]
        for b in bounds
    ]


def history(walls: Sequence[tuple[str, float, bool]]) -> str:
    """Return a bar for each run, as high as its wall time.

    Parameters
    ----------
    walls
        Label, wall time in seconds, and whether it is the run on the page; oldest first.
    """
    high = max((wall for _, wall, _ in walls), default=0.0)
    if len(walls) < 2 or not high > 0:
        return ""
    right, bottom, tall = _WIDTH - _RIGHT, 150, 150 - _TOP
    slot = min(44.0, (right - _LEFT) / len(walls))
    words = f"Wall time of {count(len(walls), 'run')}, the newest {long_duration(walls[-1][1])}"
    out = [
        f'<svg class="chart" role="img" viewBox="0 0 {_WIDTH} {bottom + 22}" aria-label="{safe(words)}">',
        *_grid_y([(bottom - tall * part, _axis_time(high * part, high)) for part in (0.0, 0.5, 1.0)]),
    ]
    for number, (label, wall, here) in enumerate(walls):
        tall_here = max(1.0, tall * wall / high)
        kind = "bar here" if here else "bar"
        out.append(
            f'<rect class="{kind}" x="{_LEFT + slot * number + 1:.1f}" y="{bottom - tall_here:.1f}" '
            f'width="{max(1.0, slot - 3):.1f}" height="{tall_here:.1f}"><title>{safe(label)}</title></rect>'
        )
    out.append(f'<text class="tick" x="{_LEFT}" y="{bottom + 17}">oldest</text>')
    end = _LEFT + slot * len(walls) - 2
    out.append(f'<text class="tick" x="{end:.1f}" y="{bottom + 17}" text-anchor="end">newest</text>')
    return "".join([*out, "</svg>"])


def _axis_time(seconds: float, high: float) -> str:
    if not seconds:
        return "0"
    return f"{seconds / 60:.0f} min" if high >= 180 else long_duration(seconds)


def _doublings(most: int) -> list[int]:
    every = 2 if most > 512 else 1
    return [2**power for power in range(0, 14, every) if 2**power <= most]


def _grid_x(ticks: Sequence[tuple[float, str]], title: str) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    out = [
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>'
        f'<text class="tick" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{safe(text)}</text>'
        for x, text in ticks
    ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    return [*out, f'<text class="tick" x="{middle}" y="{bottom + 34}" text-anchor="middle">{safe(title)}</text>']


def _grid_y(ticks: Sequence[tuple[float, str]]) -> list[str]:
    return [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{safe(text)}</text>'
        for y, text in ticks
    ]


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
