"""The rules of a run as a state machine without I/O: events in, decisions out."""
