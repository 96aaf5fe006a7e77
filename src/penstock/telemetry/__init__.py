"""What a store does, counted: the one wrapper around `Store`, and the observer of its events.

No store counts calls or jobs; whoever serves one puts a `store.Telemetry` around it. What only the
store can know of itself is in its `health`.
"""
