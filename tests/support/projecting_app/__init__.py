"""Models that projections keep, for their tests."""
