"""One question, researched: `python -m drlib.app "question"`.

`setup` is what a person says, `speakers` the four ways to a model; `asking` puts an agent together
(policy, world, tools, limits) and gives its answer with sources and cost; `terminal` shows the work
as it goes, `serving` does so behind a page in a browser.
"""

from drlib.app.research import Answered, Setup, ask

__all__ = ["Answered", "Setup", "ask"]
