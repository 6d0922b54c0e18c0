"""Question synthesis: questions drawn from a world, each with one verified answer."""

from drlib.questions.chains import chain_questions
from drlib.questions.question_engine import synthesize_questions

__all__ = ["chain_questions", "synthesize_questions"]
