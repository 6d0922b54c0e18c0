"""How good is it, and how sure are we: `metrics` holds the estimators and their intervals."""
