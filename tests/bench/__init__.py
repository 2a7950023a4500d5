"""Tests of the client side: raw results, validity, statistics, seeds."""
