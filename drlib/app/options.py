"""What `drlib ask` is told, and the one line that it says where it has no answer."""

from dataclasses import dataclass

ENGINES = ("hf", "vllm")


class AskError(Exception):
    """No answer; the message is one line that says why."""


@dataclass(frozen=True)
class Setup:
    """Who is asked, and with what.

    agent: a key of `AGENTS`. world: a name of `load_world`. start: where the webwalker's walk
    begins, a page's title or URL.
    search: live search in the place of the world, a key of `tools.providers.PROVIDERS`, with "=URL"
    where it is a server of yours; pages are then read from the web.
    endpoint, model: of an OpenAI-compatible server ("http://localhost:8000/v1"). folder: of a model
    on this disk, which engine ("hf" or "vllm") runs, or, with an endpoint, that a vLLM server runs;
    the tour's policy where all are empty. native: whether tools are told by the server's or the
    model's own means. runs: of Heavy mode.
    plugins: modules that register agents, worlds or tools of one's own.

    AskError: what is named does not go together.
    """

    agent: str = "react"
    world: str = "tour"
    start: str = ""
    search: str = ""
    endpoint: str = ""
    model: str = ""
    folder: str = ""
    engine: str = "hf"
    api_key: str = ""
    native: bool = False
    runs: int = 4
    plugins: str = ""
    temperature: float = 0.0
    calls: int = 20
    turn_tokens: int = 4096
    context_tokens: int = 32_000
    seconds: float = 600.0
    prices: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self):
        if bool(self.endpoint) != bool(self.model):
            raise AskError("an endpoint and a model go together: give both --endpoint and --model")
        if self.engine not in ENGINES:
            raise AskError(f"no engine {self.engine!r}: there are {' and '.join(ENGINES)}")
        if self.search and not (self.endpoint or self.folder):
            raise AskError(
                "live search is for a model that you name: the tour's knows its own world"
            )
        if (self.agent == "webwalker") != bool(self.start):
            raise AskError("the webwalker, and nobody else, needs --start: a page's title or URL")
        if self.agent == "webwatcher":
            raise AskError(
                "the webwatcher asks about a picture, which has no option: see notebook 13"
            )
