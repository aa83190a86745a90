"""Functions over arrays, block by block: on top of tasks, for people who have an array and a function."""
