"""Requests through rounds, and tokens into text. Knows neither drafters nor models."""
