"""The event log: what happened in a store, appended to files that others read."""
