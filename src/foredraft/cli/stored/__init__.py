"""What is stored on this machine: recent text, installed models."""
