"""The tests, as a package: helpers are imported as `from tests.conformance.cases import …`."""
