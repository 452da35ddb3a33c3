"""From options to rows: what spark.read and spark.readStream do."""
