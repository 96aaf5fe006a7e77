"""The stores: each a `Store`, none knowing another."""
