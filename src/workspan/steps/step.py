"""A step, a list of steps, and the rewrites of such a list.

What is timed is what is in the list, and nothing else decides it: a coarser timing is a list with some of its steps
folded into one. So the list can be printed and checked before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from workspan.errors import ConfigurationError, UsageTypeError
from workspan.measure import timers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

__all__ = ["Phase", "Step", "Timing", "explain", "fold", "identity", "rewrite", "without_identities"]

Timing = Literal["auto", "phases", "stages", "total", "off"]
"""How finely a chain is timed: see :func:`rewrite`."""


class Phase(Enum):
    """What kind of work a step does."""

    INPUT_PREP = "input prep"
    """Bring the input into the form that the function takes."""
    FUNCTION_BODY = "body"
    """The function itself, the user's or a built-in one."""
    OUTPUT_BUILD = "output build"
    """Bring what the function returned into the form that is handed on."""
    INPUT_FETCH = "input fetch"
    """Get the input: work of the executor, in front of the chain and outside of its total."""


@dataclass(frozen=True, slots=True)
class Step:
    """One lazy step: an iterable goes in, an iterable comes out.

    It holds no timing state: one list of steps may serve many chains at once, and ``step.apply`` may be called without
    any clock.

    Examples
    --------
    >>> step = Step("Map(double) body", Phase.FUNCTION_BODY, 0, lambda items: (2 * item for item in items), user=True)
    >>> list(step.apply([1, 2]))
    [2, 4]
    """

    label: str
    """Name, for example ``"MapBatches(score) body"``."""
    bucket: Phase | None
    """The phase that its time counts for; ``None``: it spans several."""
    stage: int | None
    """Index of its stage in the chain, from 0; ``None``: it spans several."""
    apply: Callable[[Any], Any]
    """Iterable in, iterable out, or both asynchronous; called in the first pull, once a chain."""
    user: bool = False
    """Whether it runs code of the user."""
    ops: tuple[str, ...] = ()
    """Names of the logical operators that it performs, usually one."""

    def __init__(
        self,
        label: str,
        bucket: Phase | None,
        stage: int | None,
        apply: Callable[[Any], Any],
        *,
        user: bool = False,
        ops: Iterable[str] = (),
    ) -> None:
        if not isinstance(label, str):
            raise UsageTypeError(f"Step({label!r}, ...): a label is text, not {type(label).__name__}")
        if bucket is not None and not isinstance(bucket, Phase):
            raise UsageTypeError(f"Step({label!r}, {bucket!r}, ...): the bucket is a Phase or None")
        if stage is not None and (isinstance(stage, bool) or not isinstance(stage, int)):
            raise UsageTypeError(f"Step({label!r}, ..., stage={stage!r}): a stage is a number from 0")
        if stage is not None and stage < 0:
            raise ConfigurationError(f"Step({label!r}, ..., stage={stage}): stages are counted from 0")
        if not callable(apply):
            raise UsageTypeError(f"Step({label!r}, ..., apply={apply!r}): apply is called with an iterable")
        if isinstance(ops, str):
            raise UsageTypeError(f"Step({label!r}, ..., ops={ops!r}): ops are several names; write ops=({ops!r},)")
        for name, value in zip(
            ("label", "bucket", "stage", "apply", "user", "ops"),
            (label, bucket, stage, apply, bool(user), tuple(ops)),
            strict=True,
        ):
            object.__setattr__(self, name, value)

    @property
    def operator(self) -> str:
        """What it performs: its ``ops`` joined by ``+``, or its label without the phase where there are none."""
        if self.ops:
            return "+".join(self.ops)
        return self.label.removesuffix(f" {self.bucket.value}") if self.bucket else self.label.removesuffix(" stage")


def identity(items: Any) -> Any:
    """Return the items: the ``apply`` of a step that does nothing."""
    return items


@dataclass(frozen=True, slots=True)
class _Composed:
    """Several ``apply`` after one another."""

    applies: tuple[Callable[[Any], Any], ...]

    def __call__(self, items: Any) -> Any:
        for apply in self.applies:
            items = apply(items)
        return items


def fold(steps: Iterable[Step], stages: Collection[int]) -> list[Step]:
    """Fold the steps of each of *stages* into one that spans its phases.

    Data and the order of calls stay the same. Steps that fetch input stay by themselves.

    Examples
    --------
    >>> prep = Step("Map(f) input prep", Phase.INPUT_PREP, 0, identity, ops=["Map(f)"])
    >>> body = Step("Map(f) body", Phase.FUNCTION_BODY, 0, identity, user=True, ops=["Map(f)"])
    >>> [(step.label, step.bucket, step.user) for step in fold([prep, body], [0])]
    [('Map(f) stage', None, True)]
    """
    folded: list[Step] = []
    run: list[Step] = []
    for step in [*steps, None]:
        same = bool(run) and step is not None and step.stage == run[0].stage and step.bucket is not Phase.INPUT_FETCH
        if run and not same:
            folded.append(_merged(run))
            run = []
        if step is not None:
            if step.stage in stages and step.bucket is not Phase.INPUT_FETCH:
                run.append(step)
            else:
                folded.append(step)
    return folded


def _merged(run: Sequence[Step], label: str | None = None) -> Step:
    if label is None and len(run) == 1 and run[0].bucket is None:
        return run[0]
    ops = tuple(dict.fromkeys(op for step in run for op in step.ops))
    name = "+".join(ops) or "+".join(dict.fromkeys(step.operator for step in run))
    return Step(
        label or f"{name} stage",
        None,
        run[0].stage if label is None else None,
        _Composed(tuple(step.apply for step in run)),
        user=any(step.user for step in run),
        ops=ops,
    )


def listed(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps of a chain, if that is what they are.

    Raises
    ------
    UsageTypeError
        It is no iterable, or something in it is no step.
    """
    if not isinstance(steps, Iterable):
        hint = "; put it in a list" if isinstance(steps, Step) else ""
        raise UsageTypeError(f"a chain is made of several steps, not of one {type(steps).__name__}{hint}: {steps!r}")
    found = tuple(steps)
    for step in found:
        if not isinstance(step, Step):
            raise UsageTypeError(f"a chain is made of steps, not of {type(step).__name__}: {step!r}")
    return found


def without_identities(steps: Iterable[Step]) -> list[Step]:
    """Drop the steps that do nothing, which are those whose ``apply`` is :func:`identity`."""
    return [step for step in steps if step.apply is not identity]


def rewrite(steps: Iterable[Step], timing: Timing = "auto", *, rows: Collection[int] = ()) -> list[Step]:
    """Return the list of steps that a way of timing asks for.

    Parameters
    ----------
    steps
        The steps, one for each phase of each stage.
    timing
        ``"phases"``: as they are. ``"stages"``: each stage folded into one step. ``"total"``: one step. ``"auto"``: the
        stages in *rows* folded where there is no native timer, the others as they are. ``"off"``: as they are, to be
        run without a clock.
    rows
        Stages that handle one row after the other, so that a timer costs much beside the work.

    Raises
    ------
    ConfigurationError
        *timing* is none of these.
    UsageTypeError
        *steps* are no steps, or *rows* no collection.
    """
    steps = [*listed(steps)]
    if not hasattr(rows, "__contains__"):
        raise UsageTypeError(f"rows={rows!r}: it is the indices of several stages, for example rows=[0]")
    if timing in ("phases", "off"):
        return steps
    if timing == "stages":
        return fold(steps, {step.stage for step in steps if step.stage is not None})
    if timing == "auto":
        return steps if timers.NATIVE else fold(steps, rows)
    if timing == "total":
        fetch = [step for step in steps if step.bucket is Phase.INPUT_FETCH]
        rest = [step for step in steps if step.bucket is not Phase.INPUT_FETCH]
        return fetch + ([_merged(rest, "->".join(dict.fromkeys(step.operator for step in rest)))] if rest else [])
    raise ConfigurationError(f"timing={timing!r}: it is one of auto, phases, stages, total, off")


def explain(steps: Iterable[Step]) -> str:
    """Return the steps as a table: index, stage, phase, whose code, label.

    Examples
    --------
    >>> print(explain([Step("Map(f) body", Phase.FUNCTION_BODY, 0, identity, user=True)]))
    #  stage  phase  code  step
    0      0  body   user  Map(f) body
    """
    return grid(
        [("#", "stage", "phase", "code", "step")]
        + [(str(index), *describe(step), short(step.label)) for index, step in enumerate(steps)],
        right=(0, 1),
    )


def describe(step: Step) -> tuple[str, str, str]:
    """Return stage, phase and whose code it is, as text."""
    stage = "all" if step.stage is None else str(step.stage)
    return stage, "all" if step.bucket is None else step.bucket.value, "user" if step.user else "built-in"


def short(label: str, width: int = 48) -> str:
    """Cut a label for display."""
    return label if len(label) <= width else f"{label[: width - 3]}..."


def grid(rows: Sequence[Sequence[str]], *, right: Collection[int]) -> str:
    """Return rows of text in columns, those in *right* aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
