"""What the tests of steps share: a clock that is told the time, and steps that work by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from workspan import Phase, Step


@dataclass
class Clock:
    """A clock that stands still unless it is told how many ns go by."""

    now: int = 1_000

    def __call__(self) -> int:
        return self.now

    def pass_by(self, ns: int) -> None:
        self.now += ns


def working(clock: Clock, ns: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return the apply of a step that works for each item."""

    def apply(items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            clock.pass_by(ns)
            yield item

    return apply


def step(
    apply: Callable[[Any], Any], stage: int = 0, *, bucket: Phase | None = Phase.FUNCTION_BODY, **more: Any
) -> Step:
    """Return a step with a label that tells its stage."""
    return Step(more.pop("label", f"f{stage} body"), bucket, stage, apply, **more)


def steps(*applies: Callable[[Any], Any]) -> list[Step]:
    """Return one step a stage."""
    return [step(apply, stage) for stage, apply in enumerate(applies)]
