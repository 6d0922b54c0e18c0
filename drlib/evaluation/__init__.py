"""How good is it, and how sure are we: `metrics` holds intervals, `results` what was counted."""
