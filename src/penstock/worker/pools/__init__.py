"""Where handlers run: on a loop, in threads, or in processes of their own."""
