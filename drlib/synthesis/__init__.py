"""Questions and demonstrations made from a world."""

from drlib.synthesis.engine import synthesize_questions
from drlib.synthesis.questions import Task, chain_questions, is_correct

__all__ = ["Task", "chain_questions", "is_correct", "synthesize_questions"]
