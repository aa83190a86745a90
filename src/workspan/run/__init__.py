"""What a person calls: tasks, pipelines, and the loop that joins schedule, engine, store and report."""
