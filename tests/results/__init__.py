"""Tests of rows, gates, the results folder and ingest."""
