"""``workspan demo``: a brain, smoothed and sorted into tissue classes, block by block."""
