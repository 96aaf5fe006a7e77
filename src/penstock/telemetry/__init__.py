"""What a store does, counted: the one wrapper around `Store`, and the observer of its events.

No store counts anything; whoever serves one puts a `store.Telemetry` around it.
"""
