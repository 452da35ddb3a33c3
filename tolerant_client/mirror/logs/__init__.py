"""What is read of a log on either cluster, by whoever compares or proves something."""
