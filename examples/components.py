"""Connected components of a volume that is cut into blocks, the same as on the whole volume.

Three tasks, block by block: each block labels its own foreground (``label``), pairs of labels that touch across the
faces of blocks are collected (``touch``), and, once a union-find has merged them, each block renames its labels
(``relabel``). No process ever holds more than a block and the table of labels that touch.

    python examples/components.py raw.zarr 110 labels.zarr

makes ``labels.zarr`` with the components of ``raw.zarr`` above 110, numbered from 1.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
from scipy import ndimage

import workspan as ws


def components(raw, threshold, out, *, folder, block_shape="chunks", workers=2, **run):
    """Label the face-connected components of ``raw > threshold``; return how many there are.

    Parameters
    ----------
    raw
        Path of a Zarr array, of any number of axes.
    threshold
        Foreground is what is brighter.
    out
        Path of the labels that are made, int64: 0 is background.
    folder
        For the labels of the blocks and for what is done; the same call goes on with what is missing.
    block_shape, workers
        Voxels per block, and worker processes.
    **run
        Arguments of ``run_blockwise``.
    """
    folder = Path(folder)
    how = {"max_workers": workers}
    label = ws.map_blocks(
        partial(label_block, threshold=threshold),
        raw,
        out=folder / "blocks.zarr",
        dtype="int64",
        block_shape=block_shape,
        task_id="label",
        tracking_path=folder / "label",
        **how,
    )
    # The lower halo shows each block the last voxels of its neighbours: every face is seen once, by the upper block.
    touch = ws.reduce_blocks(
        touching_labels,
        label,
        combine=merge_pairs,
        block_shape=tuple(label.write_roi.shape),
        halo=((1, 0),) * len(label.write_roi.shape),
        task_id="touch",
        tracking_path=folder / "touch",
        **how,
    )
    if not touch.run(**run):
        raise RuntimeError("some blocks failed; the same call goes on with what is missing")

    old, new, count = numbering(touch)
    np.savez(folder / "table.npz", old=old, new=new)
    relabel = ws.map_blocks(
        partial(relabel_block, table=str((folder / "table.npz").absolute())),
        folder / "blocks.zarr",
        out=out,
        block_shape=tuple(label.write_roi.shape),
        task_id="relabel",
        tracking_path=folder / "relabel",
        **how,
    )
    if not relabel.run(**run):
        raise RuntimeError("some blocks failed; the same call goes on with what is missing")
    return count


def label_block(data, block, *, threshold):
    """Label one block; no other block has its labels, which begin at its number times 2**32."""
    labels, _ = ndimage.label(data > threshold, output=np.int64)
    labels[labels > 0] += block.index << 32
    return labels


def touching_labels(labels, block):
    """Pairs of labels that touch across the lower faces of one block, and the labels in it that touch nothing.

    Rows ``(a, b)``; a label by itself is the row ``(a, a)``.
    """
    size = tuple(block.write_roi.shape)
    halo = [n - w for n, w in zip(labels.shape, size, strict=True)]  # 0 where the volume begins, else 1
    own = np.unique(labels[tuple(slice(h, None) for h in halo)])
    rows = [np.stack([own, own], axis=1)[own > 0]]
    for axis, is_inside in enumerate(halo):
        if not is_inside:
            continue
        face = [slice(h, None) for h in halo]
        below, above = (labels[(*face[:axis], slice(at, at + 1), *face[axis + 1 :])] for at in (0, 1))
        both = (below > 0) & (above > 0)
        rows.append(np.stack([below[both], above[both]], axis=1))
    return np.unique(np.concatenate(rows), axis=0)


def merge_pairs(one, other):
    """Rows of both, each once."""
    return np.unique(np.concatenate([one, other]), axis=0)


def numbering(touch):
    """Union-find over the pairs: labels of the blocks, what each becomes (1, 2, ...), and how many there are."""
    pairs = touch.result()
    old, flat = np.unique(pairs, return_inverse=True)
    parent = np.arange(len(old))

    def root(at):
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    for a, b in flat.reshape(-1, 2).tolist():
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    roots, new = np.unique([root(at) for at in range(len(old))], return_inverse=True)
    return old, new + 1, len(roots)


def relabel_block(labels, *, table):
    """Give each voxel the number of its component."""
    with np.load(table) as known:
        old, new = known["old"], known["new"]
    if not len(old):
        return labels
    at = np.searchsorted(old, labels).clip(max=len(old) - 1)
    return np.where(labels > 0, new[at], 0)


if __name__ == "__main__":
    raw, threshold, out = sys.argv[1:]
    print(components(raw, float(threshold), out, folder=f"{out}.work"), "components")
