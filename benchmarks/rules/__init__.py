"""Whether the rules keep the text and accept what they should, and what noise and acceptance cost."""
