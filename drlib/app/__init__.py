"""Answer one question from the command line or the browser: `drlib ask "question"`.

`research` builds and runs the agent, `terminal` prints its progress, `server` is the web page.
"""

from drlib.app.research import AskOptions, AskResult, ask

__all__ = ["AskOptions", "AskResult", "ask"]
