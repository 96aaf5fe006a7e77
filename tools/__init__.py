"""What the project needs beside the package: run by make, never installed."""
