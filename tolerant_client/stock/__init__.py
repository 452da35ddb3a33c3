"""kafka-python's clients on the tracker."""
