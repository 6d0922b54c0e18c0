"""Questions and demonstrations made from a world."""

from drlib.synthesis.engine import synthesize_questions
from drlib.synthesis.questions import chain_questions

__all__ = ["chain_questions", "synthesize_questions"]
