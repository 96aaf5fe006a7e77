"""The SDK: what a Python developer touches. `Penstock` in `app.py` is where it begins."""
