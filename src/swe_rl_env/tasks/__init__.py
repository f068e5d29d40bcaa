"""What a task is, and where tasks come from."""
