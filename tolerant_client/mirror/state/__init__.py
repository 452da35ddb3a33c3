"""What a link remembers on its target."""
