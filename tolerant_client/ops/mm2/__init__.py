"""MirrorMaker 2's configuration, read unchanged."""
