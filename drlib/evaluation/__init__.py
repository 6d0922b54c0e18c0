"""Evaluation: `evaluate` runs held-out questions, `results` holds outcomes and intervals."""
