"""Complete programs of under eighty lines each. The test suite runs them."""
