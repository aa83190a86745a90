"""Rows through functions: read, map and write over Arrow blocks, with the truth about every step."""
