"""Questions and demonstrations made from a world."""

from drlib.synthesis.questions import Task, is_correct, synthesize_questions

__all__ = ["Task", "is_correct", "synthesize_questions"]
