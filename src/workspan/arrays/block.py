"""What a worker does with one block: read, compute, check, write; each in a section of its own."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.arrays.edges import clipped, read_box, slices
from workspan.arrays.tiles import Tiles
from workspan.errors import DataError
from workspan.measure.sections import section

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from workspan.arrays.refs import Ref
    from workspan.arrays.tiles import TilePlan
    from workspan.grid import Block
    from workspan.grid.layout import Box


class BlockReader:
    """Calls a function of arrays with what a block reads.

    Parameters
    ----------
    func
        ``func(array, ...)`` or ``func(array, ..., block=block)``.
    inputs
        The arrays, one an argument.
    mode, fill
        What lies beyond the edge, as for :func:`workspan.arrays.edges.read_box`.
    """

    outputs: tuple[Ref, ...] = ()

    def __init__(self, func: Callable[..., Any], inputs: Sequence[Ref], mode: str, fill: Any) -> None:
        self.func = func
        self.inputs = tuple(inputs)
        self.mode, self.fill = mode, fill
        self.takes_block = takes_block(func, len(self.inputs))
        self.plans: tuple[TilePlan | None, ...] = ()
        """For each input how it is read by tiles; those without a plan, and all if it is empty, are not."""
        self._arrays: tuple[Any, ...] | None = None

    @property
    def worker_modules(self) -> tuple[str, ...]:
        """What a worker loads for this."""
        refs = (*self.inputs, *self.outputs)
        libraries = [ref.library for ref in refs if ref.library is not None]
        return tuple(dict.fromkeys([type(self).__module__, *(type(ref).__module__ for ref in refs), *libraries]))

    def forget(self) -> None:
        """Open the arrays anew at the next block: they may have been made anew."""
        self._arrays = None

    def arrays(self) -> tuple[Any, ...]:
        """Open the inputs, once."""
        if self._arrays is None:
            with section("import"):
                self._arrays = self.open()
        return self._arrays

    def open(self) -> tuple[Any, ...]:
        """Open what a block needs."""
        plans = self.plans or (None,) * len(self.inputs)
        opened = [(ref.open(), plan) for ref, plan in zip(self.inputs, plans, strict=True)]
        return tuple(array if plan is None else Tiles(array, plan) for array, plan in opened)

    def compute(self, block: Block) -> Any:
        """Read what *block* reads, and return what the function makes of it."""
        arrays = self.arrays()
        box = roi_box(block.read_roi)
        with section("read"):
            data = [
                read_box(array, ref.voxels(box), mode=self.mode, fill=self.fill)
                for ref, array in zip(self.inputs, arrays, strict=False)
            ]
        with section("compute"):
            return self.func(*data, block=block) if self.takes_block else self.func(*data)


class BlockMapper(BlockReader):
    """Writes what the function returns.

    Parameters
    ----------
    func, inputs, mode, fill
        As for :class:`BlockReader`.
    outputs
        The arrays, one for each that the function returns.
    """

    def __init__(
        self, func: Callable[..., Any], inputs: Sequence[Ref], outputs: Sequence[Ref], mode: str, fill: Any
    ) -> None:
        super().__init__(func, inputs, mode, fill)
        self.outputs = tuple(outputs)

    def open(self) -> tuple[Any, ...]:
        """Open inputs and outputs."""
        return *super().open(), *(ref.open(write=True) for ref in self.outputs)

    @property
    def _named(self) -> str:
        """The function, for messages."""
        from workspan.run.functions import function_name

        return f"the function {function_name(self.func)!r}"

    def __call__(self, block: Block) -> None:
        """Process one block.

        Raises
        ------
        DataError
            The function returned what the outputs cannot take; the block is not tried again.
        """
        results = self.compute(block)
        count = len(self.outputs)
        several = results if isinstance(results, (tuple, list)) and count > 1 else (results,)
        if len(several) != count:
            raise DataError(
                f"block {block.block_id}: {self._named} returned {len(several)} arrays, and there are {count} outputs: "
                "return one array for each"
            )
        parts = [self._own(block, ref, result) for ref, result in zip(self.outputs, several, strict=True)]
        with section("write"):
            for (box, data), array in zip(parts, self.arrays()[len(self.inputs) :], strict=True):
                array[slices(box)] = data

    def _own(self, block: Block, ref: Ref, result: Any) -> tuple[Box, NDArray[Any]]:
        """Return where *block* writes, in voxels, and its part of *result*, from which the halo is cut off."""
        data = np.asarray(result)
        read, write = ref.voxels(roi_box(block.read_roi)), clipped(ref.voxels(roi_box(block.write_roi)), ref.shape)
        if self.mode == "clip":
            read = clipped(read, ref.shape)
        whole, own = _extent(read), _extent(write)
        if data.shape != whole and data.shape != own:
            or_own = "" if whole == own else f", or {own} without the halo"
            raise DataError(
                f"block {block.block_id}, which writes {block.write_roi}: {self._named} returned an array of shape "
                f"{data.shape} for {ref.name}, and {whole} was expected{or_own}: return as many voxels as were read"
            )
        if not holds(ref.dtype, data.dtype):
            raise DataError(
                f"block {block.block_id}, which writes {block.write_roi}: {self._named} returned {data.dtype} for "
                f"{ref.name}, which is {ref.dtype} and cannot hold it without loss: pass dtype={str(data.dtype)!r}, or "
                f"return result.astype({str(ref.dtype)!r})"
            )
        if data.shape != own:
            data = data[tuple(slice(w - r, w - r + n) for w, r, n in zip(write[0], read[0], own, strict=True))]
        return write, data


def takes_block(func: Callable[..., Any], arrays: int) -> bool:
    """Whether a function of so many *arrays* wants to be told its block, by a parameter of that name behind them."""
    try:
        parameters = inspect.signature(func).parameters
    except (TypeError, ValueError):  # built in
        return False
    found = parameters.get("block")
    if found is None or found.kind not in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY):
        return False
    return found.kind is found.KEYWORD_ONLY or list(parameters).index("block") >= arrays


def holds(dtype: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether every value of *other* has its place in *dtype*."""
    return bool(np.can_cast(other, dtype, "safe"))


def roi_box(roi: Any) -> Box:
    """Return a ROI as begin and end."""
    return tuple(map(int, roi.begin)), tuple(map(int, roi.end))


def _extent(box: Box) -> tuple[int, ...]:
    return tuple(e - b for b, e in zip(*box, strict=True))
