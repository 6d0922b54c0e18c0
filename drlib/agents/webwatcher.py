"""WebWatcher: ReAct about a picture, by a vision model.

The question refers to a picture without describing it. The policy has to identify it by its pixels
(`image_search`), crop one of several things (`crop`; the part is shown too), read text in it
(`read`), and continue with text tools. Source: WebWatcher (arXiv 2508.05748), ReAct over tools for
images, texts, pages, code and reading; `crop` is an addition that replaces looking closer.

The engine must read messages (`drlib.models.api_engine` with a vision model): each picture is sent
as a part of the message that names it. The record has the pictures' names without pixels; the
toolbox's album (`drlib.tools.pictures`) has the pixels.
"""

from drlib.agents.agent import AGENTS
from drlib.agents.context import NO_PICTURES, Context
from drlib.agents.react import ReAct
from drlib.agents.rollout_state import RolloutState
from drlib.tools.pictures import to_data_url
from drlib.validation import require

START = """{question}

The picture is called {name} and is {width} pixels wide and {height} high. Tools know it, and the \
parts that crop cuts out of it, by their names."""


@AGENTS.register("webwatcher")
class WebWatcher(ReAct):
    """ReAct whose context has pictures.

    `Trajectory.metadata["pictures"]`: names of the pictures shown, in order.

    Raises:
        ValueError: the engine reads token ids, the toolbox has no `pictures`, or a task's `picture`
            is not among them.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        require(self.engine.reads == "messages", NO_PICTURES)
        remedy = "the webwatcher needs pictures: give the toolbox an album, Toolbox(pictures=..)"
        require(self.toolbox.pictures is not None, remedy)

    def begin(self, state):
        """Return the question with its picture."""
        name, album = state.task.picture, self.toolbox.pictures
        require(name in album, f"task {state.task.id}: its picture {name!r} is not in the album")
        state.notes["pictures"] = []
        height, width, _ = album.pixels(name).shape
        question = state.task.question
        context = state.begin(
            START.format(question=question, name=name, width=width, height=height)
        )
        self._show(state, context, name)
        return context

    def next_context(self, state, context):
        """Return the same context, with a new crop shown in it."""
        yield from ()
        result = state.results[-1]
        part = result.text.partition(" ")[0]
        if result.tool == "crop" and part in self.toolbox.pictures:
            self._show(state, context, part)
        return context

    def _show(self, state: RolloutState, context: Context, name: str) -> None:
        context.add_pictures({name: to_data_url(self.toolbox.pictures.pixels(name))})
        state.notes["pictures"].append(name)
