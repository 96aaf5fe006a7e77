"""The SDK: tasks, pushes, results, and running them in tests."""
