"""What a response of the source means for the target: pure."""
