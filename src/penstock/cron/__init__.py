"""Keeping crons going: `scheduler.py` has their instants installed in time."""
