"""What looks on at rounds: counts and times, log-probabilities, and the test of the text's distribution."""
