"""From rows to records: the implementation of df.write and df.writeStream."""
