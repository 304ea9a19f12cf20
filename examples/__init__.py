"""Complete programs, each under eighty lines; the suite runs them."""
