"""WebWatcher: ReAct about a picture, by a policy that sees.

The question comes with a picture, and no word of it says what the picture shows: one has to look,
find the thing by its pixels (`image_search`), cut a part out where several things are on it
(`crop`; the part is shown, too), read what is written there (`read`), and go on with the tools for
text. Source: WebWatcher (arXiv 2508.05748): ReAct over tools for images, texts, pages, code and
reading. There `crop` is no tool; here it is what the policy does in the place of looking closer.

The engine must read messages (`drlib.models.api_engine`, before a model that sees): it gets each picture
as a part of the message that names it. The record names pictures and has no pixels; the toolbox's
album (`drlib.tools.pictures`) has these.

Left out: a policy of token ids that sees, for which this kit has no weights.
"""

from drlib.agents.agent import AGENTS
from drlib.agents.context import BLIND, Context
from drlib.agents.react import ReAct
from drlib.agents.rollout_state import RolloutState
from drlib.tools.pictures import to_data_url
from drlib.validation import require

START = """{question}

The picture is called {name} and is {width} pixels wide and {height} high. Tools know it, and the \
parts that crop cuts out of it, by their names."""


@AGENTS.register("webwatcher")
class WebWatcher(ReAct):
    """`Trajectory.metadata`: "pictures", the names of those that the policy was shown, in order.

    ValueError: the engine reads token ids, the toolbox has no `pictures`, or a task's `picture` is
    not among them.
    """

    def __init__(self, *how, **more):
        super().__init__(*how, **more)
        require(self.engine.reads == "messages", BLIND)
        wanted = "the webwatcher looks at pictures: give the toolbox an album, Toolbox(pictures=..)"
        require(self.toolbox.pictures is not None, wanted)

    def begin(self, at):
        """The question with its picture."""
        name, album = at.task.picture, self.toolbox.pictures
        require(name in album, f"task {at.task.id}: its picture {name!r} is not in the album")
        at.notes["pictures"] = []
        height, width, _ = album.pixels(name).shape
        question = at.task.question
        context = at.begin(START.format(question=question, name=name, width=width, height=height))
        self._show(at, context, name)
        return context

    def next_context(self, at, context):
        """The same context; a part that was cut out is shown in it."""
        yield from ()
        result = at.results[-1]
        part = result.text.partition(" ")[0]
        if result.tool == "crop" and part in self.toolbox.pictures:
            self._show(at, context, part)
        return context

    def _show(self, at: RolloutState, context: Context, name: str) -> None:
        context.show({name: to_data_url(self.toolbox.pictures.pixels(name))})
        at.notes["pictures"].append(name)
