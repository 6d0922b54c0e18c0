"""Questions, answers and trajectories of `drlib ask --serve`, in SQLite."""

import json
import sqlite3
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

COLUMNS = ("asked_at", "seconds", "question", "answer", "error", "sources", "usage")
MEMORY_ROWS = 100
STOPPED = "stopped"  # error of a question that was cancelled


class History:
    """Asked questions in one file; safe for many threads.

    Args:
        path: None keeps the last `MEMORY_ROWS` questions in memory.

    Raises:
        ValueError: the file is not a history.
    """

    def __init__(self, path: Path | str | None = None):
        self._lock = threading.Lock()
        self._in_memory = path is None
        path = ":memory:" if path is None else path
        self._db = sqlite3.connect(path, check_same_thread=False)
        try:
            with self._db:
                self._db.execute(
                    f"CREATE TABLE IF NOT EXISTS questions (id INTEGER PRIMARY KEY, "
                    f"{', '.join(COLUMNS)}, events)"
                )
                names = {row[1] for row in self._db.execute("PRAGMA table_info(questions)")}
                if "events" not in names:  # a file of an earlier version
                    self._db.execute("ALTER TABLE questions ADD COLUMN events")
                self.list(1)
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{path} is not a history of questions: {error}") from error

    def add(
        self,
        question: str,
        seconds: float,
        line: dict[str, Any],
        events: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Add a question with its events and the last line: an answer or an error."""
        asked_at = datetime.now(UTC) - timedelta(seconds=seconds)
        sources, usage = (json.dumps(line.get(name)) for name in ("sources", "usage"))
        row = (asked_at.isoformat(timespec="seconds"), round(seconds, 1), question)
        row += (line.get("answer"), line.get("error"), sources, usage, json.dumps(list(events)))
        with self._lock, self._db:
            added = self._db.execute(
                f"INSERT INTO questions ({', '.join(COLUMNS)}, events) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )
            if self._in_memory:
                oldest = added.lastrowid - MEMORY_ROWS
                self._db.execute("DELETE FROM questions WHERE id <= ?", (oldest,))

    def list(self, limit: int) -> list[dict[str, Any]]:
        """Return the last questions, newest first, without their events."""
        sql = f"SELECT id, {', '.join(COLUMNS)} FROM questions ORDER BY id DESC LIMIT ?"
        with self._lock:
            rows = self._db.execute(sql, (limit,)).fetchall()
        return [_read_row(row) for row in rows]

    def find(self, number: int) -> dict[str, Any] | None:
        """Return the question with this id and its events; None without one."""
        sql = f"SELECT id, {', '.join(COLUMNS)}, events FROM questions WHERE id = ?"
        with self._lock:
            row = self._db.execute(sql, (number,)).fetchone()
        return (
            None if row is None else _read_row(row[:-1]) | {"events": json.loads(row[-1] or "[]")}
        )

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _read_row(row: Sequence[Any]) -> dict[str, Any]:
    found = dict(zip(("id", *COLUMNS), row))
    status = "answered" if found["answer"] is not None else "failed"
    if found["error"] == STOPPED:
        status = "stopped"
    parsed = {name: json.loads(found[name]) for name in ("sources", "usage")}
    return found | parsed | {"status": status}
