"""Complete programs of under eighty lines each. The suite runs them."""
