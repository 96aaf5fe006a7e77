"""The worker: real stores, real threads, real processes."""
