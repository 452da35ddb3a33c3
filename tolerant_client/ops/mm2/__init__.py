"""MirrorMaker 2's configuration, read as it stands."""
