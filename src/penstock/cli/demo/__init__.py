"""`penstock demo`: a server, workers and a day's mixed work in under a minute, with everything that
goes wrong on such a day."""
