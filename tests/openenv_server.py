"""Servers for tests/test_environments_openenv.py: python -m tests.openenv_server KIND PORT."""

import os
import re
import sys
from pathlib import Path

import uvicorn
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

DOCS = Path(__file__).parents[1] / "docs" / "environments.md"


class Guess(Action):
    """An action: a number and, as an option, a wish."""

    number: int
    wish: str = ""


class Shown(Observation):
    """An observation."""

    text: str


class Guessing(Environment):
    """A foreign environment: find a number below 1000; a right guess gives 4 points."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **_):
        self.goal = (seed or 0) % 1000
        return Shown(text=f"Guess {self.goal} or {self.goal + 7}.")

    def step(self, action, timeout_s=None, **_):
        if action.wish == "crash":
            raise OSError("disk full")
        if action.wish == "exit":
            os._exit(1)
        if action.number == self.goal:
            return Shown(text="right", reward=4.0, done=True)
        return Shown(text="wrong", reward=1.0 if action.wish == "comfort" else None)

    @property
    def state(self):
        return State()


def documented_app():
    """Return the application of docs/environments.md, which serves web:easy."""
    block = re.search(r"^```python\n# my_server\.py\n(.*?)^```", DOCS.read_text(), re.M | re.S)
    names = {}
    exec(block[1], names)
    return names["app"]


def main():
    kind, port = sys.argv[1], int(sys.argv[2])
    foreign = {"max_concurrent_envs": 8}
    app = {
        "guessing": lambda: create_fastapi_app(Guessing, Guess, Shown, **foreign),
        "shop": documented_app,
    }[kind]()
    uvicorn.run(app, port=port, log_level="warning")


if __name__ == "__main__":
    main()
