"""The server over real sockets, on a store in memory."""
