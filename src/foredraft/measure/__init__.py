"""Whether the text is the target's: certificates, and a watch for processes that run for long."""
