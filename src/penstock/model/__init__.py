"""The words of the domain: values, rules and the seam. No I/O; imports nothing else of ours."""
