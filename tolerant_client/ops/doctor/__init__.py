"""What is wrong with two clusters and the link between them: facts are read, findings are decided from them."""
