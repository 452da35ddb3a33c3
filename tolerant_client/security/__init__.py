"""Translates Java client properties to kafka-python's: names, keystores, logins."""
