"""What every store must do, as cases that run on each of them: see `harness.STORES`."""
