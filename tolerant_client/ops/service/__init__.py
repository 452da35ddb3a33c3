"""The life of a running link: settings, ranges, duties, restarts."""
