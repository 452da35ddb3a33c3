"""From rows to records: what df.write and df.writeStream do."""
