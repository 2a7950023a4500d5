"""Results: rows, store, ingest, comparison, report."""
