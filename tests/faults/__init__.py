"""Stores under faults: power cuts, kills, full disks. What was acknowledged has to be there."""
