"""A run is captured once, replayed, and its arguments updated."""
