"""A compatibility layer on kafka-python that survives lost, late and wrong answers."""
