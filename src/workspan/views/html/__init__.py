"""Reports as HTML: one page that needs nothing but itself, and small pieces for notebooks."""
