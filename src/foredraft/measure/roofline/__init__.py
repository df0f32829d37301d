"""What passes cost on this machine, and what follows from it."""
