"""Answer one question with a research agent: options, model, agent, answer with sources and cost.

`AskOptions` selects one of four models: the tour's policy (default), a model behind an
OpenAI-compatible server (`endpoint`, `model`), a model folder (`folder`, run by transformers or
vLLM), or a folder served by vLLM (both: prompts and completions are then exchanged as token ids).
Every expected failure raises `AskError`; the trajectory so far is saved first.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from drlib.agents import AGENTS, Agent, Limits
from drlib.agents.preset import Preset, load_preset, read_prompt
from drlib.agents.rollout_state import Watch
from drlib.agents.s3 import answer_from_facts
from drlib.chat.prompts import (
    FORMAT_HELP,
    FORMAT_HELP_JSON,
    FORMAT_HELP_NATIVE,
    load_trained_prompt,
    research_prompt,
)
from drlib.chat.template import ChatIds, load_any_tokenizer
from drlib.chat.worked_example import build_worked_example, repeats_example
from drlib.config import ROOT, SMOL, SMOL_READER, Config, find_model
from drlib.endpoint import ChatEndpoint, EndpointError, parse_names
from drlib.environments import load_environments
from drlib.evaluation.benchmark_run import BenchmarkRun
from drlib.models.api_engine import ApiEngine
from drlib.models.engine import Engine
from drlib.models.json_turns import JsonTurns
from drlib.questions.escalation import keep_solvable, make_agent_solver
from drlib.registry import load_plugins
from drlib.sandbox import Sandbox
from drlib.task import Task, normalise_answer
from drlib.tools import PageReader, ParseFile, Provider, Toolbox
from drlib.tools.standard_io import NAME as STANDARD_IO
from drlib.tools.standard_io import StandardIOTool
from drlib.tools.toolbox import extract_pages
from drlib.trajectory import Termination, Trajectory, save_trajectories
from drlib.validation import require
from drlib.worlds import ENGINES as RANKINGS
from drlib.worlds import load_world

ENGINES = ("hf", "vllm")
REFERENCE = ROOT / "figures" / "reference"
TOUR_POLICY = REFERENCE / "tour" / "policy_rl"
# The tour's policy with further training on reports, summaries and merging.
MEMORY_POLICY = REFERENCE / "agents" / "policy"
# A cold start with demonstrations of a planner and its workers.
PLANNER_POLICY = REFERENCE / "planner" / "policy"
MEMORY_AGENTS = (
    "iterresearch",
    "heavy",
    "resum",
    "s3",
    "agentfold",
    "browseconf",
    "parallelmuse",
)
MERGING_AGENTS = ("heavy", "parallelmuse")  # their merger reads several reports
HEAVY_CONTEXT_TOKENS = 640  # context of the tour's MERGING_AGENTS
MEMORY_CALLS = 16  # tool calls of MEMORY_AGENTS and the planner with their small policies
PLAIN_AGENTS = ("react", "managed")  # every turn is a call or an answer, without other tags
SEARCH_RESULTS = 5  # results per search, for models other than the tour's policy
MAX_SOURCES = 8
NO_WORLD = "none"
FORMAT_ERRORS = 3  # unreadable turns in a row that end a run
SUPPORT_NOTE = ": its text contains the answer"
# words in the error of a server that rejects a constraint
CONSTRAINT_WORDS = ("response_format", "schema", "structured", "grammar", "guided")
REJECTED = (
    "--constrained needs a server with structured outputs (response_format of type json_schema; "
    "with --folder, structured_outputs of vLLM): leave it out or use such a server"
)
REPEATED = (
    "no answer: the model repeated the invented fact of the worked example ({!r}): leave "
    "--few-shot out"
)
FAILURE_REASONS = {
    Termination.LENGTH: "the limit of context or generated tokens was reached; raise "
    "--context-tokens or --turn-tokens",
    Termination.TURNS: "the limit of calls or turns was reached; raise --calls",
    Termination.WALL_CLOCK: "the time limit was reached; raise --seconds",
    Termination.LOOP: "the agent repeated the same tool call",
}
# remedies for a model that does not write the expected format
NOT_NATIVE = "pass --native-tools if the model was trained to call tools"
UNREADABLE = (
    "{} turns in a row could not be parsed as a tool call or an answer (shown above): check the "
    "server's chat template and tool parser, {}, use a larger model, or train it on demonstrations "
    "(drlib train sft --profile gpu1 -p model NAME)"
)


class AskError(RuntimeError):
    """There is no answer; the message is one line with the cause."""


@dataclass(frozen=True)
class AskOptions:
    """Options of `ask`.

    Args:
        agent: key of `AGENTS`.
        world: name passed to `load_world`, or "none": nothing to search.
        start: title or URL of the first page, for the webwalker only.
        search: ranking of the world's pages (`drlib.worlds.ENGINES`), or live search instead of the
            world: a key of `tools.PROVIDERS`, with "=URL" for a self-hosted server. Pages are then
            fetched from the web.
        endpoint, model: OpenAI-compatible server ("http://localhost:8000/v1") and its model; the
            model "smol" without a server is the folder "smol-reader".
        folder: local model folder; with `endpoint`, the folder that the vLLM server runs.
        engine: "hf" or "vllm", for `folder` without `endpoint`.
        native: pass tools through the server's or the chat template's own tool format.
        runs: researchers of Heavy, runs of ParallelMuse, attempts of BrowseConf.
        plugins: comma-separated modules that register agents, worlds or tools.
        seconds: time limit, also of one request to the server.
        prices: (prompt, completion), per million tokens.
        omit: comma-separated request parameters that the server rejects, such as "temperature".
        preset: published agent whose tools, prompt and message form are used; see `preset_options`
            for its sampling and limits.
        few_shot: put a worked example (`drlib.chat.worked_example`) before the question.
        constrained: constrain every turn to a call or an answer (`drlib.models.turn_constraint`,
            `drlib.models.json_turns`).
        system_prompt: with `preset`: file with the system prompt, see `read_prompt`.
        question_prompt: with `preset`: file with the text of the first user message, which contains
            {question}.
        files: folder of files that the agent can read with the tool `parse_file`.
        file_names: the only files of `files` that it can read; empty: all.
        environments: "NAME+NAME:ARGUMENTS" of the tasks (`drlib.environments`), whose tools replace
            the agent's.

    Raises:
        AskError: the options are inconsistent.
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
    omit: str = ""
    preset: str = ""
    few_shot: bool = False
    constrained: bool = False
    system_prompt: str = ""
    question_prompt: str = ""
    files: str = ""
    file_names: tuple[str, ...] = ()
    environments: str = ""

    def __post_init__(self):
        self._check_preset()
        if self.model == SMOL and not self.endpoint and not self.folder:
            object.__setattr__(self, "folder", SMOL_READER)
            object.__setattr__(self, "model", "")
        if bool(self.endpoint) != bool(self.model):
            raise AskError("--endpoint and --model must be given together")
        if self.engine not in ENGINES:
            raise AskError(f"unknown engine {self.engine!r}: use {' or '.join(ENGINES)}")
        if is_live(self.search) and not (self.endpoint or self.folder):
            raise AskError(
                "live search requires --endpoint or --folder, because the tour's policy is trained "
                "on its own world only"
            )
        if (self.agent == "webwalker") != bool(self.start):
            raise AskError("--start (a page's title or URL) is required by the webwalker only")
        if self.agent == "webwatcher":
            raise AskError(
                "the webwatcher needs a picture, which this command cannot pass: see docs/agents.md"
            )

        self._check_help_with_format()
        fixed = {"--native-tools": self.native, "--constrained": self.constrained}
        for name, is_set in {**fixed, "--preset": self.preset}.items():
            if self.environments and is_set:
                raise AskError(f"{name} fixes the tools, which tasks of environments replace")

    def _check_help_with_format(self) -> None:
        used = [
            name
            for name, is_set in (("--few-shot", self.few_shot), ("--constrained", self.constrained))
            if is_set
        ]
        if not used:
            return
        name = used[0]
        if not (self.endpoint or self.folder):
            raise AskError(f"{name} needs --endpoint or --folder: the tour's policy is trained")
        if self.preset:
            raise AskError(f"{name} cannot be combined with --preset, which sets the prompt")
        if self.agent not in PLAIN_AGENTS:
            raise AskError(
                f"{name} supports the agents {' and '.join(PLAIN_AGENTS)}: {self.agent} has turns "
                "of another form"
            )
        if self.constrained and self.native:
            raise AskError("--constrained replaces --native-tools: give one of them")
        if self.constrained and "response_format" in parse_names(self.omit):
            raise AskError("--constrained sends response_format: remove it from --omit")

    def _check_preset(self) -> None:
        if not self.preset:
            if self.system_prompt or self.question_prompt:
                raise AskError("--system-prompt and --question-prompt need --preset")
            return
        try:
            preset = load_preset(self.preset)
        except ValueError as error:
            raise AskError(str(error)) from None
        if self.folder or not self.endpoint:
            raise AskError("--preset needs --endpoint and --model, without --folder")
        if self.native and not preset.native:
            raise AskError(f"--native-tools: the preset {self.preset} was trained on tools as text")
        object.__setattr__(self, "native", preset.native)


def preset_options(name: str) -> dict[str, Any]:
    """Return the arguments of `AskOptions` that a preset sets, itself included.

    Raises:
        AskError: there is no such preset.
    """
    try:
        return {**load_preset(name).options, "preset": name}
    except ValueError as error:
        raise AskError(str(error)) from None


def describe_prompt(options: AskOptions) -> str:
    """Return the line about prompts that the preset's model was not trained with, or "".

    Raises:
        AskError: a file of a prompt cannot be read.
    """
    if not options.preset:
        return ""
    texts = (_read_prompt(options.system_prompt), _read_prompt(options.question_prompt))
    return load_preset(options.preset).describe_prompt(*texts)


def _read_prompt(source: str) -> str:
    try:
        return read_prompt(source) if source else ""
    except ValueError as error:
        raise AskError(str(error)) from None


@dataclass(frozen=True)
class Source:
    """A page shown to the agent.

    Attributes:
        supports: its text contains the answer.
        opened: the agent visited it; otherwise a search only listed it.
    """

    title: str
    url: str
    supports: bool
    opened: bool


@dataclass(frozen=True)
class AskResult:
    """Answer, sources, resource usage and trajectory of one question."""

    answer: str
    sources: list[Source]
    usage: dict[str, Any]
    trajectory: Trajectory


class AskSession(ExitStack):
    """Context manager with an agent that is built once and answers one question at a time.

    Raises:
        AskError: unknown agent, world or model.
    """

    def __init__(self, options: AskOptions):
        super().__init__()
        self.options = options
        try:
            self._agent = _build_agent(options, self)
        except BaseException:
            self.close()
            raise

    def ask(self, question: str, watch: Watch | None = None, save: Path | None = None) -> AskResult:
        """Research one question.

        Args:
            watch: called with every turn, tool result and end of the rollout.
            save: Parquet file for the trajectory, written on failure too.

        Raises:
            AskError: no answer.
            KeyboardInterrupt, or an exception of `watch`: re-raised after saving.
        """
        require(bool(question.strip()), "the question is empty")
        finished: list[Trajectory] = []

        def record(event: str, state, value) -> None:
            if event == "end":
                finished.append(value)
            if watch is not None:
                watch(event, state, value)

        task = Task("asked", question, "", "search", self.options.world, start=self.options.start)
        try:
            self._agent.run([task], temperature=self.options.temperature, watch=record)
        except EndpointError as error:
            raise AskError(_explain_refusal(error, self.options)) from None
        except ValueError as error:  # the question exceeds the policy's context
            raise AskError(str(error)) from None
        finally:
            if self.options.few_shot and finished:  # the record's messages are the task's own
                finished[-1].metadata["example"] = _worked_example(self.options)
            if save is not None and finished:
                save_trajectories(save, finished)
        trajectory = finished[-1]
        if trajectory.answer is None:
            raise AskError(_explain_failure(trajectory, self.options))
        if self.options.few_shot and repeats_example(trajectory.answer):
            raise AskError(REPEATED.format(trajectory.answer))
        sources = find_sources(trajectory)
        return AskResult(trajectory.answer, sources, count_usage(trajectory), trajectory)

    def answer_benchmark(
        self, run: BenchmarkRun, budget: float | None, progress: Callable[[Trajectory], object]
    ) -> bool:
        """Answer what a benchmark run has no answers to; see `BenchmarkRun.answer`.

        Raises:
            AskError: the server refuses.
        """
        try:
            return run.answer(self._agent, self.options.temperature, budget, progress)
        except EndpointError as error:
            raise AskError(_explain_refusal(error, self.options)) from None

    def keep_solvable(
        self, tasks: Sequence[Task], n: int, least: int, path: Path
    ) -> tuple[list[Task], dict[str, int]]:
        """Return the tasks that the agent answers in `least` of `n` rollouts, and the outcomes.

        Raises:
            AskError: the server refuses.
        """
        attempt = make_agent_solver(self._agent, temperature=self.options.temperature)
        try:
            return keep_solvable(tasks, attempt, n, least, path)
        except EndpointError as error:
            raise AskError(_explain_refusal(error, self.options)) from None


def ask(
    question: str, options: AskOptions, watch: Watch | None = None, save: Path | None = None
) -> AskResult:
    """Research one question with a new session; see `AskSession.ask`."""
    require(bool(question.strip()), "the question is empty")
    with AskSession(options) as session:
        return session.ask(question, watch, save)


def _build_agent(options: AskOptions, stack: ExitStack) -> Agent:
    """Build the agent and its toolbox; resources to close are registered in `stack`."""
    preset = load_preset(options.preset) if options.preset else None
    has_world = preset is None or "search" in (tool["name"] for tool in preset.tools)
    has_world = has_world and options.world != NO_WORLD and not is_live(options.search)
    try:
        load_plugins(options.plugins)
        make = AGENTS[options.agent]
        ranking = options.search or RANKINGS[0]  # live search has no world
        world = load_world(options.world, engine=ranking) if has_world else None
        backends = _live_backends(options.search, preset) if is_live(options.search) else {}
        environments = load_environments(options.environments)
        if options.files:
            backends["parse_file"] = [ParseFile(options.files, options.file_names)]
    except (ValueError, OSError, ImportError) as error:
        raise AskError(str(error)) from None
    sandbox = stack.enter_context(Sandbox(workers=1))
    has_model = options.endpoint or options.folder
    results = SEARCH_RESULTS if has_model else Config.load("laptop").rollout.search_results
    if preset is not None and preset.results:
        results = preset.results
    runs_standard_io = preset is not None and STANDARD_IO in (t["name"] for t in preset.tools)
    toolbox = stack.enter_context(
        Toolbox(
            world,
            None if runs_standard_io else sandbox,
            results=results,
            tools=[StandardIOTool.from_sandbox(sandbox)] if runs_standard_io else (),
            backends=backends,
            coerce=bool(has_model),
            environments=environments,
        )
    )
    setup = _load_model(options, toolbox, stack)
    by_agent: dict[str, dict[str, Any]] = {
        "heavy": {"n": options.runs},
        "parallelmuse": {"n": options.runs},
        "browseconf": {"attempts": options.runs},
        "resum": {"summarise": None},  # the model writes its own summaries
        "planner": {"recap": bool(has_model)},
        "agentfold": {"summarise": None} if has_model else {},
        "s3": {} if has_model else {"generate": answer_from_facts},
    }
    extra = by_agent.get(options.agent, {})
    try:
        return make(setup.engine, toolbox, setup.chat, setup.limits, setup.system, **extra)
    except ValueError as error:  # the agent needs another engine
        raise AskError(f"--agent {options.agent}: {error}") from None


def is_live(search: str) -> bool:
    """Return True if the option `search` names a live provider, not a ranking of the world."""
    return bool(search) and search not in RANKINGS


def _live_backends(search: str, preset: Preset | None) -> dict[str, list[Any]]:
    """Return the backends of live search; with a preset, serper also searches articles.

    Raises:
        ValueError: unknown provider, or missing key or server address.
    """
    name, _, url = search.partition("=")
    backends: dict[str, list] = {"search": [Provider(name, url)], "visit": [PageReader()]}
    if preset is not None and name == "serper":
        backends["google_scholar"] = [Provider("serper_scholar", url)]
    return backends


# ---- model


class ModelSetup(NamedTuple):
    """Model-specific arguments of an agent."""

    engine: Engine
    chat: Any
    limits: Limits
    system: str | None


def _load_model(options: AskOptions, toolbox: Toolbox, stack: ExitStack) -> ModelSetup:
    """Load the model that the options select.

    Raises:
        AskError: the model is missing or unsuitable.
    """
    try:
        if options.folder:
            return _load_folder(options, toolbox, stack)
        if options.endpoint:
            return _connect_server(options, toolbox)
    except (ValueError, OSError, ModuleNotFoundError, EndpointError) as error:
        raise AskError(str(error)) from None
    return _load_tour_policy(options)


def _connect_server(options: AskOptions, toolbox: Toolbox) -> ModelSetup:
    if options.preset:
        return _connect_preset(options, load_preset(options.preset), toolbox)
    engine = ApiEngine(
        _create_endpoint(options),
        tools=_tool_schemas(toolbox) if options.native else None,
        prices=options.prices,
        attempts=3,
        message_format=JsonTurns(toolbox.schemas) if options.constrained else None,
        example=_worked_example(options),
    )
    return ModelSetup(engine, None, _create_limits(options), _system_prompt(options, toolbox))


def _connect_preset(options: AskOptions, preset: Preset, toolbox: Toolbox) -> ModelSetup:
    question = _read_prompt(options.question_prompt) or preset.messages.question
    require(
        "{question}" in question,
        f"{options.question_prompt} has no {{question}}: add it where the question belongs",
    )
    engine = ApiEngine(
        _create_endpoint(options),
        tools=preset.list_functions(toolbox.tools) if preset.native else None,
        prices=options.prices,
        attempts=3,
        options=dict(preset.request),
        message_format=replace(preset.messages, question=question),
    )
    system = preset.build_prompt(_read_prompt(options.system_prompt), toolbox.tools)
    limits = replace(_create_limits(options), **preset.limits)
    return ModelSetup(engine, None, limits, system)


def _load_folder(options: AskOptions, toolbox: Toolbox, stack: ExitStack) -> ModelSetup:
    from drlib.chat.model_template import TemplateIds, is_drlib_tokenizer

    tokenizer = load_any_tokenizer(options.folder)
    is_policy = is_drlib_tokenizer(tokenizer)
    example = _worked_example(options)
    require(
        not (is_policy and example),
        f"--few-shot: {options.folder} is a policy of drlib, which is trained on the format",
    )
    if is_policy:
        chat = ChatIds(tokenizer)
    elif options.native:
        chat = TemplateIds(tokenizer, _tool_schemas(toolbox), example=example)
    else:
        chat = TemplateIds(tokenizer, tool_role="user", example=example)
    engine = _create_token_engine(options, chat, toolbox, stack)
    limits = _create_limits(options, engine.max_context)
    if is_policy:
        # drlib's policies know the form, and no other text about it
        return ModelSetup(engine, chat, replace(limits, format_help=""), None)
    trained = load_trained_prompt(Path(find_model(options.folder)))
    if trained is not None:  # it knows the form of its training, and no other text about it
        return ModelSetup(engine, chat, replace(limits, format_help=""), trained)
    return ModelSetup(engine, chat, limits, _system_prompt(options, toolbox))


def _create_token_engine(options: AskOptions, chat: Any, toolbox: Toolbox, stack: ExitStack) -> Any:
    """Create an engine that exchanges token ids with the model in `options.folder`."""
    constraint = None
    if options.constrained:
        from drlib.models.turn_constraint import TurnConstraint

        constraint = TurnConstraint(chat, toolbox.schemas)
    if options.endpoint:
        from drlib.models.vllm_server import VllmServer

        folder = find_model(options.folder)
        return VllmServer(_create_endpoint(options), folder, attempts=3, constraint=constraint)
    if options.engine == "vllm":
        from drlib.models.vllm_engine import VllmEngine

        engine = VllmEngine(find_model(options.folder), dtype="auto", constraint=constraint)
        stack.callback(engine.close)
        return engine
    from drlib.models.transformers_engine import TransformersEngine

    return TransformersEngine(options.folder, constraint=constraint)


def _load_tour_policy(options: AskOptions) -> ModelSetup:
    from drlib.models.local_engine import LocalEngine
    from drlib.models.moe import load_policy

    config = Config.load("laptop")
    policies = dict.fromkeys(MEMORY_AGENTS, MEMORY_POLICY) | {"planner": PLANNER_POLICY}
    model, tokenizer = load_policy(policies.get(options.agent, TOUR_POLICY))
    context = (
        HEAVY_CONTEXT_TOKENS
        if options.agent in MERGING_AGENTS
        else config.rollout.max_context_tokens
    )
    engine = LocalEngine(model.eval(), max_context=context, slots=options.runs)
    calls = MEMORY_CALLS if options.agent in policies else config.rollout.max_calls
    limits = Limits(calls, config.rollout.max_turn_tokens, context)
    return ModelSetup(engine, ChatIds(tokenizer), limits, None)


def _create_endpoint(options: AskOptions) -> ChatEndpoint:
    key = options.api_key or os.environ.get("DRLIB_API_KEY", "")
    return ChatEndpoint(
        options.endpoint,
        options.model,
        timeout_s=options.seconds,
        api_key=key,
        omit=parse_names(options.omit),
    )


def _tool_schemas(toolbox: Toolbox) -> list[dict]:
    return [tool.function for tool in toolbox.tools.values()]


def _system_prompt(options: AskOptions, toolbox: Toolbox) -> str:
    """Return the system prompt; it lists the tools unless they are passed natively."""
    return research_prompt(
        () if options.native else toolbox.schemas, is_json=_has_json_turns(options)
    )


def _worked_example(options: AskOptions) -> list[dict]:
    """Return the messages of the worked example, none without `few_shot`."""
    return build_worked_example(is_native=options.native) if options.few_shot else []


def _has_json_turns(options: AskOptions) -> bool:
    """Return True if a server of messages constrains turns to JSON."""
    return options.constrained and not options.folder


def _create_limits(options: AskOptions, max_context: int | None = None) -> Limits:
    """Create the rollout limits; `max_context` is the model's context length in tokens."""
    context = options.context_tokens
    format_help = FORMAT_HELP_NATIVE if options.native else FORMAT_HELP
    if _has_json_turns(options):
        format_help = FORMAT_HELP_JSON
    return Limits(
        calls=options.calls,
        turn_tokens=options.turn_tokens,
        context_tokens=context if max_context is None else min(context, max_context),
        seconds=options.seconds,
        repeats=3,
        format_errors=FORMAT_ERRORS,
        format_help=format_help,
        force_answer=True,
    )


# ---- result


def _explain_refusal(error: EndpointError, options: AskOptions) -> str:
    text = f"{options.endpoint}: {error}"
    found = f"{error} {error.details}".lower()
    is_refused = error.status in (400, 422, 501)
    if options.constrained and is_refused and any(word in found for word in CONSTRAINT_WORDS):
        text += f"; {REJECTED}"
    return text


def _explain_failure(trajectory: Trajectory, options: AskOptions) -> str:
    if trajectory.termination is Termination.ENV_FAULT:
        failed = next((r for r in trajectory.tool_results if r.env_fault), None)
        if failed is not None:
            return f"the tool {failed.tool} failed: {failed.text}"
        return f"{options.endpoint}: {trajectory.metadata['fault']}"
    if trajectory.termination is Termination.FORMAT:
        remedy = "turn --native-tools off" if options.native else NOT_NATIVE
        return f"no answer: {UNREADABLE.format(FORMAT_ERRORS, remedy)}"
    return f"no answer: {FAILURE_REASONS.get(trajectory.termination, trajectory.termination)}"


def find_sources(trajectory: Trajectory) -> list[Source]:
    """Return at most 8 pages: those that contain the answer first, and of these the opened ones."""
    answer = normalise_answer(trajectory.answer or "")
    sources: dict[str, Source] = {}
    for result in trajectory.tool_results:
        opened = result.tool == "visit"
        for page in extract_pages(result):
            supports = bool(answer) and answer in normalise_answer(page.text)
            # a page may be visited by the title under which a search listed it
            named = (url for url, source in sources.items() if source.title == page.url)
            url = page.url if page.url in sources else next(named, page.url)
            known = sources.get(url, Source(page.title, url, False, False))
            sources[url] = Source(
                known.title, url, known.supports or supports, known.opened or opened
            )
    ranked = sorted(sources.values(), key=lambda source: (not source.supports, not source.opened))
    return ranked[:MAX_SOURCES]


def count_usage(trajectory: Trajectory) -> dict[str, Any]:
    """Count turns, tool calls, prompt and completion tokens, and their cost."""
    usage = trajectory.metadata.get("usage", {})
    completion_tokens = int(trajectory.generated.sum()) or usage.get("said_tokens", 0)
    prompt_tokens = usage.get("read_tokens")
    if prompt_tokens is None:
        prompt_tokens = len(trajectory) - completion_tokens if len(trajectory) else 0
    return {
        "turns": usage.get("turns", len(set(trajectory.turns[trajectory.generated].tolist()))),
        "calls": len(trajectory.tool_results),
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "cost": usage.get("cost", 0.0),
    }


def render_report(question: str, result: AskResult) -> str:
    """Render question, answer and sources as Markdown; WebWeaver's answer is a report itself."""
    if result.answer.startswith(f"# {question}\n"):
        return result.answer
    report = f"# {question}\n\n{result.answer}\n"
    for heading, opened in (("Sources", True), ("Listed by searches, not opened", False)):
        pages = [page for page in result.sources if page.opened is opened]
        lines = [f"- [{page.title}]({page.url}){SUPPORT_NOTE * page.supports}" for page in pages]
        if pages:
            report += f"\n## {heading}\n\n" + "\n".join(lines) + "\n"
    return report
