"""Clients that follow a link: they move to its target when an operator has promoted it."""
