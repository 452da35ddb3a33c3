"""What each API allows, and what its response must speak of."""
