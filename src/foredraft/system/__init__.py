"""The system below: files, JSON, sizes in words, facts of the machine."""
