"""What a run leaves behind: the tracking group, the lines of ``runs.jsonl``, the slot file and the lock.

A tracking store is a Zarr v3 group with one element per block. Its modules are imported one by one, since only runs
that track need numpy: ``tracking`` writes, ``reader`` reads, ``repair`` mends and deletes, ``runs`` keeps the history.
"""
