"""A naive model of the semantics, and the machine that holds every store against it."""
