"""Questions and answers of `drlib ask --serve --history FILE`, in SQLite."""

import json
import sqlite3
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

COLUMNS = ("asked_at", "seconds", "question", "answer", "error", "sources", "usage")


class History:
    """Asked questions in one file; safe for many threads.

    Raises:
        ValueError: the file is not a history.
    """

    def __init__(self, path: Path | str):
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False)
        try:
            with self._db:
                self._db.execute(
                    f"CREATE TABLE IF NOT EXISTS questions (id INTEGER PRIMARY KEY, "
                    f"{', '.join(COLUMNS)})"
                )
                self.list(1)
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{path} is not a history of questions: {error}") from error

    def add(self, question: str, seconds: float, line: dict[str, Any]) -> None:
        """Add a question with the last line of its events: an answer or an error."""
        asked_at = datetime.now(UTC).isoformat(timespec="seconds")
        sources, usage = (json.dumps(line.get(name)) for name in ("sources", "usage"))
        row = (asked_at, round(seconds, 1), question, line.get("answer"), line.get("error"))
        with self._lock, self._db:
            self._db.execute(
                f"INSERT INTO questions ({', '.join(COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*row, sources, usage),
            )

    def list(self, limit: int) -> list[dict[str, Any]]:
        """Return the last questions, newest first."""
        sql = f"SELECT id, {', '.join(COLUMNS)} FROM questions ORDER BY id DESC LIMIT ?"
        with self._lock:
            rows = self._db.execute(sql, (limit,)).fetchall()
        found = [dict(zip(("id", *COLUMNS), row)) for row in rows]
        return [
            row | {name: json.loads(row[name]) for name in ("sources", "usage")} for row in found
        ]

    def close(self) -> None:
        """Close the file."""
        self._db.close()
