"""The benchmark: drafters timed against plain decoding, an oracle and other libraries."""
