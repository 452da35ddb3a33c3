"""Finds problems of two clusters and the link between them: some modules read facts, others decide findings from them."""
