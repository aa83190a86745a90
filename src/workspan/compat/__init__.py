"""daisy's spellings, for scripts written for its names."""
