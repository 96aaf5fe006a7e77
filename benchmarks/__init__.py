"""Benchmarks: each module without a leading underscore runs by itself and writes to `results/`.

They show ratios within one run on one machine and never assert; a figure that misses its target
says so.
"""
