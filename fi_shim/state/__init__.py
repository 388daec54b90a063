"""What this process shows to the outside: its counts, its state file, and how such files are read."""
