"""Grammars that an answer must match: what they may cost, and masks over tokens."""
