"""Every record at the same offset: the target's log end is the position."""
