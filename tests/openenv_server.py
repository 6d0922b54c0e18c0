"""Servers for tests/test_environments_openenv.py: python -m tests.openenv_server KIND PORT."""

import os
import sys

import uvicorn
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from drlib.environments import load_environments
from drlib.environments.openenv import openenv_app
from drlib.tools import Toolbox


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


def main():
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind == "guessing":
        app = create_fastapi_app(Guessing, Guess, Shown, max_concurrent_envs=8)
        uvicorn.run(app, port=port, log_level="warning")
        return
    environments = load_environments(kind)
    with Toolbox(None, environments=environments) as toolbox:
        app = openenv_app(environments[kind], toolbox, split="train", sessions=8)
        uvicorn.run(app, port=port, log_level="warning")


if __name__ == "__main__":
    main()
