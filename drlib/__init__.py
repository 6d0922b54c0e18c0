"""drlib: a notebook-first research kit for agentic reinforcement learning of deep-research agents.

This is the map. Rooms stand in the order in which data flows through them, and a module imports
only from rooms above its own (tests/test_layout.py holds this).

files
    The one writer of whole files or none; the one writer and the one reader of JSON lines.
checks
    One-line checks of arguments, whose messages say what is wrong.
startup
    How a program begins: what it imports is not searched for garbage.
registry
    Names under which a thing can be chosen, one registry a kind; modules of others that add theirs.
task
    A question with its verified answer, and the one place that says whether an answer is right.
trajectory
    The one record that every stage reads and writes: the token ids of a rollout, which of them the
    policy generated and with what log-probability, the tool results, how it ended, its reward.
profiles
    ci in seconds, laptop in minutes, gpu1 and gpu8 for real models.
settings
    How a setting is declared.
rl_settings
    The settings of reinforcement learning, each switch a published mechanism.
config
    Every setting by one flat name.
format
    How a turn writes a tool call or an answer, and the strict parser of both.
wordings
    What an agent says to its policy where a context begins with a report or ends with a summary.
endpoint
    The one client of language models behind OpenAI-compatible servers.
worlds
    What can be looked up: pages with links, a full-text index, a graph of facts; real ones (Unicode
    CLDR, Python's library, a folder, a Kiwix file, a data set) and fictional ones; drawn emblems of
    their things.
sandbox
    Where generated Python runs: forked from a warm process, without network or files, killed on
    time-out; a pool here, a service and a Ray front elsewhere.
tools
    What an agent can call (search, visit, python, google_scholar, parse_file, calculator; over an
    album of pictures image_search, crop, read), over a world or live sources, with limits, caches,
    fail-over, and observations that never raise.
chat
    The tokenizer, the one chat template of all stages, what each token is part of.
segments
    The same for rollouts of other models, whose tags are no tokens.
questions
    Questions whose answers the graph proves, in the ways of the Tongyi family, and their quality.
demonstrations
    Attempts by teachers that work through the tools alone, their filters, pre-training text.
policy
    The Mixture-of-Experts policy, the engine that samples from it (slots, KV cache, exact
    log-probabilities), engines over transformers, vLLM, any OpenAI-compatible server and a script,
    the chat of any model by its own template, routing replay, and log-probabilities for large
    vocabularies.
agents
    How a policy is driven: ReAct, IterResearch, Heavy mode, ReSum, managed contexts, WebWeaver,
    WebWalker, WebWatcher, s3, each a generator over any engine, within limits that hold for all.
rl
    From trajectories to gradients, as pure functions: rewards, filters, resampling, advantages,
    losses with every published clip as a switch, curricula, stabilisers.
training
    The stages, each a program: pre-training, the cold start, reinforcement learning; run folders
    that resume, one process or several. For real models the same stages on TRL, PEFT and
    accelerate, and a planner that says before a run what it needs.
evals
    Held-out accuracy with intervals, pass@k, what a skeptic asks for.
analysis
    Functions on trajectory files, figures, notebook widgets.
ask
    One question, researched in the terminal or behind a page in a browser, by any of the agents,
    on the tour's policy or any model.
lab
    What notebooks need: launch, ensure, progress, show_source, save_figure; and `python -m
    drlib.notebook run|refresh|check|reference|finding|sweep|strategies|table|papers`.
cli
    The `drlib` command: run, train, evaluate, plan, sweep, ask, report, sandbox; each hands over
    to a room.

Shapes are in names: B sequences, T tokens, V vocabulary, E experts, N rollouts, G group, as in
`logp_BT` or `rewards_N`.
"""

__version__ = "0.1.0"
