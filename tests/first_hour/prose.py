"""Questions about ten pages of prose, without a model and with one that reads facts.

The commands are those of docs/own_documents.md. The model is scripted: it returns the facts of
folders_facts that a page states, and some that it does not.

Run: python -m tests.first_hour.prose
"""

import json
import shutil
from functools import partial
from pathlib import Path

import yaml

from tests.first_hour import printed
from tests.first_hour.documents import check_rows, read_rows
from tests.scripted_server import Scripted

PAGE = "own_documents.md"
HERE = Path(__file__).parent
INVENTED = {
    "subject": "Nora Lark",
    "relation": "born in",
    "object": "Oslo",
    "evidence": "Nora Lark",
}


def list_facts(facts: list[dict], messages: list[dict]) -> str:
    """Return the facts that a page states, and one that it does not."""
    text = messages[-1]["content"]
    return json.dumps([INVENTED, *(one for one in facts if one["evidence"] in text)])


def main(folder: Path) -> None:
    """Draw questions from linked pages alone, then from linked and from plain pages by a model."""
    place = folder / "alone"
    shutil.copytree(HERE / "folders" / "articles", place / "notes")
    printed.run_command(printed.find_block(PAGE, "-n 50").text, place)
    rows = read_rows(place / "questions")
    assert len(rows) >= 10, f"{len(rows)} without a model"
    check_rows(rows, place / "notes")

    command = printed.find_block(PAGE, "--reader").text
    for name in ("articles", "plain_text"):
        place = folder / name
        shutil.copytree(HERE / "folders" / name, place / "notes")
        known = yaml.safe_load((HERE / "folders_facts" / f"{name}.yaml").read_text())
        facts = [fact for some in known.values() for fact in some]

        with Scripted(partial(list_facts, facts)) as server:
            server.model = "Qwen/Qwen3-4B"
            printed.run_command(command.replace("http://127.0.0.1:8000/v1", server.url), place)
            asked = server.asked
            printed.run_command(command.replace("http://127.0.0.1:8000/v1", server.url), place)
            assert asked >= 10 and server.asked == asked  # replies are kept
        rows = read_rows(place / "questions")
        assert len(rows) >= 30, f"{name}: {len(rows)} with a reader"
        assert not any("Nora Lark" in row["question"] + row["answer"] for row in rows)
        check_rows([row for row in rows if row["page"].endswith(".md")], place / "notes")


if __name__ == "__main__":
    printed.run_job(main)
