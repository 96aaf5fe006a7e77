"""The event log: what a store has told, in files."""
