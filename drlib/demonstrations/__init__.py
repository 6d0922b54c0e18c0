"""Demonstrations and pre-training text: teachers, filters and samples."""
