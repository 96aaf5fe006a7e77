"""The data source and the pipeline on a real Spark: one session for all, real servers beside it."""
