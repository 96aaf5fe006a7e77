"""Penstock on Spark: jobs in and out as DataFrames, and everything that happened as tables.

The only place of the package that imports pyspark, which comes with the `spark` extra.
"""
