"""One question, researched: `python -m drlib.ask "question"`.

`asking` puts an agent together (policy, world, tools, limits) and gives its answer with sources and
cost; `terminal` shows the work as it goes.
"""

from drlib.ask.asking import Answered, Setup, ask

__all__ = ["Answered", "Setup", "ask"]
