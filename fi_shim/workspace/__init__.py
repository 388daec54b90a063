"""What was asked, how much it is, whether it fits, whether all agree. Free of monkey-patching; usable alone."""
