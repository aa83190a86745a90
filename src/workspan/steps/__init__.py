"""A chain of lazy steps and the clock that tells what each of them cost."""

from __future__ import annotations

from workspan.steps.chain import Chain
from workspan.steps.clock import TransformClock
from workspan.steps.record import ChainTimes, Latency, StepTimes
from workspan.steps.step import Phase, Step, explain, fold, identity, rewrite, without_identities

__all__ = [
    "Chain",
    "ChainTimes",
    "Latency",
    "Phase",
    "Step",
    "StepTimes",
    "TransformClock",
    "explain",
    "fold",
    "identity",
    "rewrite",
    "without_identities",
]
