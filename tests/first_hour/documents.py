"""Questions about a wiki, product sheets and course notes by the commands of own_documents.md.

Run: python -m tests.first_hour.documents
"""

import json
import shutil
from pathlib import Path

import yaml

from drlib.questions.wording import mentions
from tests.first_hour import printed

PAGE = "own_documents.md"
FOLDERS = Path(__file__).with_name("folders")


def read_rows(folder: Path) -> list[dict]:
    """Return the questions of a data set."""
    paths = sorted((folder / "data").glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def check_rows(rows: list[dict], notes: Path) -> None:
    """Check that questions name things as people do and that their evidence is in the files."""
    text = "\n".join(path.read_text() for path in notes.rglob("*") if path.is_file())
    for row in rows:
        said = f"{row['question']} {row['answer']}"
        assert ".md" not in said and "table row" not in said and "#" not in said.split("?")[0]
        assert not mentions(row["question"], row["answer"])
        assert row["evidence"]
        if row["page"]:
            assert (notes / row["page"].partition("#")[0].partition(": ")[0]).exists()
        else:  # a value, perhaps with a date spelled out
            assert any(name in text for name in (row["answer"], *row["aliases"]))
    assert len({row["question"] for row in rows}) == len(rows)


def main(folder: Path) -> None:
    """Run the commands of the page on three folders, and edit the words of one."""
    command = printed.find_block(PAGE, "-n 50").text
    preview = printed.find_block(PAGE, "questions preview").text
    several_hops = 0
    for name in ("company_wiki", "product_sheets", "course_notes"):
        place = folder / name
        shutil.copytree(FOLDERS / name, place / "notes")
        printed.run_command(command, place)
        rows = read_rows(place / "questions")
        assert len(rows) >= 40, f"{name}: {len(rows)} of 50"
        check_rows(rows, place / "notes")
        several_hops += sum(row["difficulty"]["look_ups"] > 1 for row in rows)
    assert several_hops >= 20

    place = folder / "company_wiki"
    printed.run_command(preview, place)
    words = place / "notes" / "drlib.yaml"
    edited = yaml.safe_load(words.read_text())
    assert edited["relations"]["Hired"] == "hired"
    edited["relations"]["Hired"] = None
    words.write_text(yaml.safe_dump(edited))
    printed.run_command(command.replace("--out questions", "--out fewer"), place)
    rows = read_rows(place / "fewer")
    assert rows and not any("hired" in row["question"] for row in rows)


if __name__ == "__main__":
    printed.run_job(main)
