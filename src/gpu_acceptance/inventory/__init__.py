"""What the machine says of itself. Read, never guessed: what it would not say is empty."""
