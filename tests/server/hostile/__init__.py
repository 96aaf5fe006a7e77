"""Clients that mean harm, or that die at the worst moment; and one beside them that means well."""
