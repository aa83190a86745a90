"""What a piece of work costs: clock, counters, sections, running statistics. Knows nothing of tasks."""
