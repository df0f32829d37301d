"""One loaded model, whoever asks it: drafters, planner, memory, requests."""
