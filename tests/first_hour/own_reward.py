"""Train with the reward of docs/own_reward.md and read its metrics.

Run: python -m tests.first_hour.own_reward
"""

import json
from pathlib import Path

from tests.first_hour import printed

PAGE = "own_reward.md"


def main(folder: Path) -> None:
    """Run the command of the page with the file of the page, then with a reward that raises."""
    command = printed.find_block(PAGE, "--rl.reward.name frugal").text
    path = printed.save_block(printed.find_block(PAGE, "def frugal("), folder)
    assert path.name == "my_rewards.py"

    ended = printed.run_command(command, folder)
    run = Path(ended.stdout.splitlines()[-1])
    assert run.parent == folder / "runs" / "ci" and run.name.startswith("rl-")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 3  # steps of the profile ci
    for row in rows:
        assert 0 <= row["reward"] <= 1 and row["reward_std"] >= 0 and 0 <= row["zero_variance"] <= 1
        # a function has one term, its value
        assert abs(row["rewards/frugal/mean"] - row["reward"]) < 1e-6
    # with a price per call, some correct answer is worth less than 1 and more than 0
    assert any(0 < row["rewards/frugal/mean"] < row["accuracy"] for row in rows)

    path.write_text(path.read_text().replace("trajectory.answer", "trajectory.reply", 1))
    broken = printed.try_command(command, folder)
    assert broken.status == 1
    last = broken.stderr.splitlines()[-1]
    assert "frugal" in last and "my_rewards.py" in last and "reply" in last


if __name__ == "__main__":
    printed.run_job(main)
