"""A worked example as turns of a conversation, for models that do not write the format otherwise.

`drlib ask --few-shot` puts it between the system prompt and the question. Its fact and names are
invented, so that it answers no real question; `repeats_example` finds an answer copied from it.
"""

from drlib.chat.tool_calls import render_answer, render_call

QUESTION = "Who keeps the lighthouse of Quellmarrow?"
ANSWER = "Ilvane Dostrell"
INVENTED = ("Quellmarrow", *ANSWER.split())
_THOUGHTS = ("I look it up.", "The page names the keeper.")
_CALL = {"query": ["Quellmarrow lighthouse keeper"]}
_RESPONSE = (
    "1. [Quellmarrow](example:Quellmarrow)\n"
    f"Quellmarrow has one lighthouse. Its keeper is {ANSWER}."
)


def build_worked_example(*, is_native: bool = False) -> list[dict[str, str]]:
    """Build the messages: a question, a search call, its response, and the answer.

    Args:
        is_native: the conversation uses the tool format of a server or template, in which an answer
            has no tags.
    """
    if is_native:
        turns = (_break_lines(render_call("search", _CALL)), ANSWER)
    else:
        actions = (_break_lines(render_call("search", _CALL)), render_answer(ANSWER))
        turns = tuple(f"<think>{t}</think>\n{a}" for t, a in zip(_THOUGHTS, actions))
    return [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": turns[0]},
        {"role": "tool", "content": _RESPONSE},
        {"role": "assistant", "content": turns[1]},
    ]


def repeats_example(answer: str) -> bool:
    """Return True if an answer contains a name of the example's fact.

    >>> repeats_example("It is Ilvane Dostrell.")
    True
    """
    words = answer.casefold()
    return any(name.casefold() in words for name in INVENTED)


def _break_lines(call: str) -> str:
    """Put the JSON of a call on a line of its own, as system prompts show it."""
    return call.replace("<tool_call>", "<tool_call>\n").replace("</tool_call>", "\n</tool_call>")
