"""The mirror, without Spark: copies the record batches of a link, with identical or translated offsets."""
