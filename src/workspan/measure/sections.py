"""Named parts of a piece of work, and what each of them cost.

``with section("read"):`` anywhere inside a block function, at any depth, sync or async, adds its *self time*: its own
window less the sections nested in it. The self times of all sections, and of the root for what no section covers, sum
to the time of the root to the nanosecond.

Which sections belong together is decided by the context (``contextvars``):

- An **asyncio task** started inside a collection is collected, and so is a thread that runs in a copy of the context
  (``asyncio.to_thread``, ``contextvars.copy_context().run``). It runs beside its starter, so its sections take nothing
  from the starter's: they count in full, in a tree of their own. Self times of such lanes can add up to more than the
  wall time. A section around an ``await`` includes the time suspended in it.
- A **plain thread** (``threading.Thread``, ``ThreadPoolExecutor``) starts with an empty context: its sections measure
  nothing, unless its target is run by ``contextvars.copy_context().run``.
- A section in a **generator** stays open over a ``yield``, and so covers what the consumer does meanwhile (less the
  consumer's own sections): put it around the work, not around the ``yield``.
- A section is open until it is left. Left out of order, by whatever thread or not at all, it shifts time between the
  sections that are open at that moment, and never adds or loses any.
- Tasks of other frameworks than asyncio that take turns in one thread share one lane.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from workspan.measure import ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextvars import Token
    from types import ModuleType
    from typing import Self

__all__ = ["Collector", "SectionNode", "StepCost", "collect", "section"]

section = ticks.Section
"""``section(name)``: context manager that times a named part of what is being collected.

Outside a :class:`collect` it measures nothing, for the price of a look at the context. One object may be used many
times, recursively and by several threads at once.
"""


class StepCost(NamedTuple):
    """What the sections of one name cost together."""

    self_seconds: float
    """Time in them and not in a section nested in them, in seconds."""
    calls: int
    """How often one was entered."""


class SectionNode(msgspec.Struct, frozen=True):
    """A section in the place where it was called: a node of the call tree."""

    name: str
    self_ns: int
    """Time in this section and in none of its children, in ns."""
    calls: int
    children: tuple[SectionNode, ...] = ()

    @property
    def self_seconds(self) -> float:
        """Time in this section and in none of its children, in seconds."""
        return self.self_ns / 1e9

    @property
    def total_ns(self) -> int:
        """Time in this section, children included, in ns."""
        return sum(node.self_ns for node in self.walk())

    def walk(self) -> Iterator[SectionNode]:
        """Yield this node and all below it, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += reversed(node.children)


class collect:
    """Collect the sections that open inside the ``with`` block, in this context and in those copied from it.

    A collection inside a collection is a whole of its own: the outer one sees none of its sections. When it ends, so do
    the sections of its own lane; those that other threads and tasks hold open count up to their last nested section.

    Parameters
    ----------
    clock
        Monotonic clock, in ns; ``None``: the machine's.

    Examples
    --------
    >>> with collect() as collected:
    ...     with section("read"):
    ...         pass
    >>> collected.steps["read"].calls
    1
    """

    __slots__ = ("_clock", "_lane", "_token", "_tree")

    _ticks: ClassVar[ModuleType] = ticks.implementation
    _tree: ticks.Tree
    _lane: ticks.Lane
    _token: Token[ticks.Lane | None]

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        self._clock = self._ticks.now_ns if clock is None else clock
        self._tree = self._ticks.Tree("", self._clock)

    def __enter__(self) -> Self:
        tree = self._tree = self._ticks.Tree("", self._clock)
        lane = self._lane = self._ticks.Lane(tree, tree.root)
        self._token = self._ticks.current_lane.set(lane)
        return self

    def __exit__(self, kind: object = None, error: object = None, traceback: object = None) -> None:
        self._lane.end()
        # Where the block is left in another context than it was entered in, there is nothing to restore.
        with suppress(ValueError):
            self._ticks.current_lane.reset(self._token)

    @property
    def steps(self) -> dict[str, StepCost]:
        """Section name -> what its sections cost together, in the order in which they appeared.

        Before the end of the block: up to the last section that was entered or left.
        """
        return _steps(self._tree)

    @property
    def root(self) -> SectionNode:
        """Call tree of the lane that collects; the root's own time is what none of its sections covers."""
        return _freeze(self._tree.root, self._tree.root.self_ns)

    @property
    def beside(self) -> tuple[SectionNode, ...]:
        """Call trees of all other lanes, one for each thread in which any ran; these roots have no own time."""
        return tuple(_freeze(root, 0) for root in _values(self._tree.aside))


class Collector:
    """Collect the sections of one piece of work after the other in this thread, cheaply where there are none.

    It is entered once; then each piece lies between :meth:`begin` and :meth:`end`. Sections outside of a piece measure
    nothing. A thread of one piece that opens its first section during a later one counts for that one.
    """

    __slots__ = ("_lane", "_token", "_tree", "pid")

    _ticks: ClassVar[ModuleType] = ticks.implementation
    _tree: ticks.Tree
    _lane: ticks.Lane
    _token: Token[ticks.Lane | None]

    def __init__(self) -> None:
        self.pid = os.getpid()
        """The process that made it, or entered it."""

    def __enter__(self) -> Self:
        self.pid = os.getpid()
        self._token = self._ticks.current_lane.set(None)
        self._renew()
        return self

    def __exit__(self, kind: object = None, error: object = None, traceback: object = None) -> None:
        self._tree.pause()
        with suppress(ValueError):
            self._ticks.current_lane.reset(self._token)

    def begin(self) -> None:
        """Begin a piece of work."""
        self._tree.resume()

    def end(self) -> dict[str, tuple[float, int]] | None:
        """End a piece of work: section name -> (self seconds, calls), or ``None`` if it opened no section."""
        tree = self._tree
        if tree.pause():
            return None
        self._lane.end()
        self._renew()
        return {name: (cost.self_seconds, cost.calls) for name, cost in _steps(tree).items()}

    def _renew(self) -> None:
        tree = self._tree = self._ticks.Tree("", self._ticks.now_ns)
        tree.pause()
        self._lane = self._ticks.Lane(tree, tree.root)
        self._ticks.current_lane.set(self._lane)


def _steps(tree: ticks.Tree) -> dict[str, StepCost]:
    costs: dict[str, list[int]] = {}
    for root in (tree.root, *_values(tree.aside)):
        nodes = [*reversed(_values(root.children))]
        while nodes:
            node = nodes.pop()
            nodes += reversed(_values(node.children))
            cost = costs.setdefault(node.name, [0, 0])
            cost[0] += node.self_ns
            cost[1] += node.calls
    return {name: StepCost(self_ns / 1e9, calls) for name, (self_ns, calls) in costs.items()}


def _values(nodes: Mapping[Any, ticks.Node]) -> list[ticks.Node]:
    return list(nodes.values())  # at once: other threads may still add to the tree


def _freeze(root: ticks.Node, self_ns: int) -> SectionNode:
    """Copy a tree, however deep, without recursion."""
    order = [root]
    for node in order:  # grows while it is walked: parents before children
        order += _values(node.children)
    frozen: dict[int, SectionNode] = {}
    for node in reversed(order):
        children = tuple(frozen[id(child)] for child in _values(node.children) if id(child) in frozen and child.calls)
        own = self_ns if node is root else node.self_ns
        frozen[id(node)] = SectionNode(node.name, own, node.calls, children)
    return frozen[id(root)]
