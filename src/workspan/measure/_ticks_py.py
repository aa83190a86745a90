"""The pure-Python twin of ``_ticks.pyx``: same names, same behaviour, for machines without a compiler.

Section times are kept by *attribution*: every instant of a lane (one thread or one asyncio task) belongs to the
innermost section that is open at that instant. Entering and leaving move a cursor and credit what it passed. For
windows that nest this is "own window less the windows nested in it"; for sections that are left out of order, left
late by an abandoned generator or never, it still splits the lane's time without gap or overlap, so that the self times
of all nodes sum to the root's total by construction.
"""

from __future__ import annotations

from contextvars import ContextVar
from sys import modules
from threading import get_ident
from time import monotonic_ns as now_ns
from typing import TYPE_CHECKING

from workspan.errors import UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Lane", "Node", "Section", "Tree", "current_lane", "now_ns"]


class Node:
    """A place in a tree of sections: one name below one parent."""

    __slots__ = ("calls", "children", "name", "self_ns")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise UsageTypeError(f"section({name!r}): a section is named by text, not by {type(name).__name__}")
        self.name = str.__str__(name)  # plain text, also of a member of a StrEnum
        self.calls = 0
        """How often the section was entered."""
        self.self_ns = 0
        """Time credited to it and not to a child, in ns."""
        self.children: dict[str, Node] = {}


class Tree:
    """What one collection has seen.

    Parameters
    ----------
    name
        Name of the root.
    clock
        Monotonic clock, in ns.
    """

    __slots__ = ("aside", "clock", "live", "root")

    def __init__(self, name: str, clock: Callable[[], int] = now_ns) -> None:
        self.root = Node(name)
        """The lane that collects: time outside all sections is the root's own."""
        self.aside: dict[int, Node] = {}
        """Thread id -> sections of other lanes that ran in that thread; these roots have no own time."""
        self.clock = clock
        self.live = True
        """Whether the collection still runs."""


class _Frame:
    """One open section of a lane."""

    __slots__ = ("below", "lane", "node", "open")

    def __init__(self, lane: Lane | None, node: Node, below: _Frame | None) -> None:
        self.lane = lane
        self.node = node
        self.below = below
        self.open = True


class Lane:
    """The time of one thread or asyncio task inside one collection; starts now.

    Parameters
    ----------
    tree
        The collection.
    root
        Where time outside all sections goes.
    """

    __slots__ = ("_clock", "_since", "_top", "task", "thread", "tree")

    def __init__(self, tree: Tree, root: Node) -> None:
        self.tree = tree
        # By id: a reference would tie the task into a cycle with its own context. Where an id is used again, its first
        # owner has ended, so that the two cannot overlap in this lane.
        self.thread = get_ident()
        self.task = running_task()
        self._clock = tree.clock
        self._top = _Frame(None, root, None)  # stays below all others
        self._since = tree.clock()

    def branch(self) -> Lane:
        """Open a lane for the calling thread and task, and make it the current one of the calling context.

        It takes nothing from the lane that it comes from: both run at once.
        """
        tree = self.tree
        lane = Lane(tree, tree.aside.setdefault(get_ident(), Node(tree.root.name)))
        current_lane.set(lane)
        return lane

    def enter(self, name: str) -> _Frame:
        """Open a section on top of the innermost one."""
        # Calls and allocations may run foreign code: a signal handler, or the collector, which closes an abandoned
        # generator, which leaves a section of this lane. They come first, and are repeated if that happened; nothing
        # can interrupt the lines after the loop.
        while True:
            top = below = self._top
            while not below.open:
                below = below.below  # type: ignore[assignment]  # the lowest frame is never left
            siblings = below.node.children
            node = siblings.get(name)
            if node is None:
                node = siblings[name] = Node(name)
            frame = _Frame(self, node, below)
            now = self._clock()
            if self._top is top and below.open:
                break
        top.node.self_ns += now - self._since
        self._since = now
        self._top = frame
        node.calls += 1
        return frame

    def leave(self, frame: _Frame) -> None:
        """Close a section; time goes on to the innermost one that is still open."""
        if self.thread != get_ident():  # a generator that moved: only its lane's own thread touches the figures
            frame.open = False
            return
        now = self._clock()
        frame.open = False
        top = self._top
        if not top.open and self.tree.live:
            top.node.self_ns += now - self._since
            self._since = now
            while not (top := self._top).open:
                self._top = top.below  # type: ignore[assignment]  # the lowest frame is never left

    def end(self) -> None:
        """Credit the time up to now and close the collection; what happens later is not measured."""
        now = self._clock()
        self._top.node.self_ns += now - self._since
        self._since = now
        self.tree.live = False


current_lane: ContextVar[Lane | None] = ContextVar("workspan_lane", default=None)
"""Lane of the calling context, or of the one that it was copied from: then the caller needs a :meth:`Lane.branch`."""


class Section:
    """Time a named piece of the work that is being measured; ``workspan.measure.sections`` tells its rules."""

    __slots__ = ("_frame", "_more", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._frame: _Frame | None = None
        self._more: list[_Frame] | None = None  # where the object is used again while it is open

    def __enter__(self) -> Section:
        lane = current_lane.get()
        if lane is not None and lane.tree.live:
            if lane.thread != get_ident() or lane.task != running_task():
                lane = lane.branch()
            frame = lane.enter(self.name)
            if self._more:
                self._more.append(frame)
            elif self._frame is None:
                self._frame = frame
            else:
                self._more = [frame]
        return self

    def __exit__(self, kind: object = None, error: object = None, traceback: object = None) -> None:
        frame = self._frame
        if self._more:
            frame = self._take(self._more)
        else:
            self._frame = None
        if frame is not None:
            frame.lane.leave(frame)  # type: ignore[union-attr]  # only the lowest frame has no lane

    def _take(self, more: list[_Frame]) -> _Frame:
        lane = current_lane.get()
        frames = more if self._frame is None else [self._frame, *more]
        frame = next((frame for frame in reversed(frames) if frame.lane is lane), frames[-1])
        if frame is self._frame:
            self._frame = None
        else:
            more.remove(frame)
        return frame


def running_task() -> int:
    """Return the id of the asyncio task that the caller runs in; 0 outside a running event loop."""
    asyncio = modules.get("asyncio")
    if asyncio is None:
        return 0
    try:
        loop = asyncio._get_running_loop()
        task = None if loop is None else asyncio.current_task(loop)
    except AttributeError:  # another thread is just importing it
        return 0
    return 0 if task is None else id(task)
