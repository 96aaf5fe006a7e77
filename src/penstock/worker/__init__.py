"""The worker: claims jobs, has their handlers run, and tells the store how they ended.

Two threads (see `worker.py`): the home thread of the app keeps the leases and never runs a handler;
handlers run in a pool, which never speaks to the store.
"""
