"""How long a step will take: orders, estimators that learn from each run, and the recorder that feeds them."""
