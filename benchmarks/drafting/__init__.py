"""What each way to guess gains, and how well the planner chooses among them."""
