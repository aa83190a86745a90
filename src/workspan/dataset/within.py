"""Sections that the functions of a task have opened, by the step in which they were.

Steps and sections are one tree (see :class:`workspan.TransformClock`): what a body opens lies below the step's own
section, beside the step before it, from which it pulls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan.measure import ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Sections", "sections_within"]

Sections = list[list[tuple[str, int, int]]]
"""For each step its sections: name, self time in ns, calls."""


def sections_within(labels: Sequence[str], before: Sections | None = None) -> Sections:
    """Return the sections that were open within each step so far in what is being collected, in this thread.

    Parameters
    ----------
    labels
        Of the steps, the first one first; two of them may be the same.
    before
        What was there before, which is left out: of an attempt that failed, for example.
    """
    lane = ticks.current_lane.get()
    found: list[dict[str, tuple[int, int]]] = [{} for _ in labels]
    # Each entry is a node and the number of the step that it is part of: a step lies within those after it.
    stack: list[tuple[ticks.Node, int, bool]] = [] if lane is None else [(lane.tree.root, len(labels), True)]
    while stack:
        node, step, is_step = stack.pop()
        if not is_step and step < len(labels):
            ns, calls = found[step].get(node.name, (0, 0))
            found[step][node.name] = ns + node.self_ns, calls + node.calls
        for child in reversed(list(node.children.values())):
            own = next((n for n in reversed(range(step)) if is_step and labels[n] == child.name), None)
            stack.append((child, step if own is None else own, own is not None))
    for step, sections in enumerate(before or ()):
        for name, ns, calls in sections:
            now = found[step].get(name, (ns, calls))
            found[step][name] = now[0] - ns, now[1] - calls
    return [[(name, ns, calls) for name, (ns, calls) in sections.items() if calls] for sections in found]
