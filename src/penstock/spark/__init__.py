"""Jobs as DataFrames: the data source `penstock`, and a Spark session that starts fast.

The only part of Penstock that imports pyspark, which comes with `penstock[spark]`.
"""
