"""Keeping crons going: `scheduler.py` installs their instants in time, `preview.py` shows them."""
