"""Penstock, a job queue. This module holds the version and nothing else."""

__version__ = "0.1.0"
