"""The compatible commands on real stores, over both encodings."""
