"""The network server: transports over one Store, in one process, on one event loop."""
