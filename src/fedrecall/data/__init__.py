"""Examples: where they come from, how they are shown, who holds which."""
