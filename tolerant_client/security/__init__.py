"""Java's client properties as kafka-python's: names, stores of keys, logins."""
