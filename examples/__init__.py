"""Complete programs with fewer than eighty lines each. The test suite runs them."""
