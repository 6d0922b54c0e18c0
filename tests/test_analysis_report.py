"""The `report` command on real rollouts: its contents, and its messages for missing data.

Run: python -m pytest tests/test_analysis_report.py
"""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from drlib.analysis import entropy_plots, reflection
from drlib.analysis.entropy import high_entropy_overlap, summarize_entropy
from drlib.analysis.inputs import read_rollouts
from drlib.analysis.report import write_report
from drlib.analysis.token_table import token_statistics
from drlib.chat.template import load_tokenizer
from drlib.chat.words import WordTokenizer
from drlib.cli.report import main
from drlib.trajectory import load_trajectories, save_trajectories

TOUR, ENTROPY = "figures/reference/tour", "figures/reference/entropy"
POLICY = f"{TOUR}/policy_rl"


def visible_text(path):
    """Return the visible text of the page, without figures and viewer."""
    page = re.sub(r"<iframe.*?</iframe>|<style>.*?</style>", "", path.read_text(), flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def start_reports(*commands, **environment):
    """Run `drlib report` in a new process, once for each command's arguments; return its results.

    With one command, the process is the command's own.
    """
    clean = {k: v for k, v in os.environ.items() if k != "MPLBACKEND"} | environment
    typed = [["report", *map(str, arguments)] for arguments in commands]
    if len(commands) == 1:
        program = ["-m", "drlib.cli", *typed[0]]
        return [
            subprocess.run([sys.executable, *program], capture_output=True, text=True, env=clean)
        ]
    program = ["-c", SEVERAL, json.dumps(typed)]
    done = subprocess.run([sys.executable, *program], capture_output=True, text=True, env=clean)
    assert done.returncode == 0, done.stderr
    return [subprocess.CompletedProcess(*one) for one in json.loads(done.stdout)]


# Prints (arguments, status, stdout, stderr) of each call.
SEVERAL = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from drlib.cli import main
done = []
for typed in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = main(typed)
    done.append((typed, status, out.getvalue(), err.getvalue()))
print(json.dumps(done))
"""


def run_report(*arguments):
    """Run `drlib report` in this process, which has imported everything."""
    typed = [*map(str, arguments)]
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = main(typed)
    return subprocess.CompletedProcess(typed, status, out.getvalue(), err.getvalue())


def test_report_numbers_match_the_library(tmp_path):
    source = f"{ENTROPY}/seed0_sft.parquet"
    (done,) = start_reports((tmp_path / "r.html", source, "--tokenizer", POLICY, "--window", 8))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "r.html") and not done.stderr
    text = visible_text(tmp_path / "r.html")
    table = token_statistics(source)
    judged = f"400 judged, {np.nanmean(table.right_M):.1%} of them"
    assert f"400 trajectories, {len(table):,} sampled tokens, {judged}" in text
    assert f"mean entropy {summarize_entropy(table)['mean_entropy']:.4f}" in text
    for lift in reflection.reflection_lift(table, window=8):
        value = "{:.2f} [{:.2f}, {:.2f}]".format(*np.exp(lift.lift))
        assert f"{lift.status} {lift.responses} {lift.tokens} {value}" in text
    page = (tmp_path / "r.html").read_text()
    assert page.count("<img") == 4 and page.count("<iframe") == 1
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    again = write_report(tmp_path / "again.html", [source], POLICY, window=8)
    assert again.read_bytes() == (tmp_path / "r.html").read_bytes(), "equal files, equal bytes"


def test_model_option_adds_missing_entropies(tmp_path):
    bare = [replace(t, entropies=None) for t in load_trajectories(f"{TOUR}/rl_sampled.parquet")]
    save_trajectories(tmp_path / "bare.parquet", bare)
    done = run_report(tmp_path / "r.html", tmp_path / "bare.parquet", "--viewed", 2)
    assert done.returncode == 0, done.stderr
    text = visible_text(tmp_path / "r.html")
    assert "have no entropy" in text and "--model" in text and "rescore(" not in text
    assert "--tokenizer" in text and "Words" not in text
    done = run_report(tmp_path / "r.html", tmp_path / "bare.parquet", "--model", POLICY)
    assert done.returncode == 0, done.stderr
    found = float(re.search(r"mean entropy ([\d.]+)", visible_text(tmp_path / "r.html"))[1])
    stored = summarize_entropy(token_statistics(f"{TOUR}/rl_sampled.parquet"))["mean_entropy"]
    assert found == pytest.approx(stored, rel=0.05), "the committed policy is rounded to bfloat16"


def test_alternatives_give_bounds_not_entropies(tmp_path):
    scored = load_trajectories(f"{ENTROPY}/viewer_rl.parquet")
    served = [replace(t, entropies=None) for t in scored]
    save_trajectories(tmp_path / "t.parquet", served)
    text = visible_text(
        write_report(tmp_path / "r.html", [tmp_path / "t.parquet"], POLICY, viewed=0)
    )
    low, high = map(float, re.search(r"between ([\d.]+) and ([\d.]+) nats", text).groups())
    exact = summarize_entropy(token_statistics(scored))["mean_entropy"]
    assert low <= exact <= high and high - low < 0.2
    assert "mean entropy 0" not in text.replace("the mean entropy", "")


def test_single_trajectory_has_no_interval(tmp_path):
    save_trajectories(tmp_path / "t.parquet", load_trajectories(f"{TOUR}/rl_sampled.parquet")[:1])
    text = visible_text(write_report(tmp_path / "r.html", [tmp_path / "t.parquet"], POLICY))
    assert "an interval needs at least two trajectories, got 1" in text
    assert "mean entropy" in text


def chat(number, *assistant, answer="Oslo"):
    """Return a chat with a tool response after each assistant turn but the last."""
    messages = [{"role": "user", "content": f"What is the capital, question {number}?"}]
    for text in assistant:
        messages += [
            {"role": "assistant", "content": text},
            {"role": "tool", "content": "wait wait"},
        ]
    return {"messages": messages[:-1], "answer": answer}


CHATS = [
    chat(1, "<think>Wait, I look again.</think>", "<think>Wait.</think><answer>Oslo</answer>"),
    chat(2, "<think>However awaiting it</think><answer>Wait</answer>"),
]


def test_report_without_a_tokenizer_counts_words(tmp_path):
    """By hand, a tag being a word: 6 + 6 in the first chat, 8 in the second.

    Mentions count in thoughts only, as whole words.
    """
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CHATS))
    done = run_report(tmp_path / "r.html", path)
    assert done.returncode == 0, done.stderr
    text = visible_text(tmp_path / "r.html")
    assert "2 trajectories, 20 sampled words, 2 judged, 50.0% of them right" in text
    assert "Counted in words, not in tokens" in text and "--tokenizer" in text
    assert "raml 3 wait 2, retry 0, recheck 0, however 1, alternatively 0" in text
    assert "tour 1 try again 0, that failed 0, an error 0, fix it 0, look again 1" in text
    assert "mentions per 1,000 words" in text and "raml 150.00 [" in text  # 3 of 20
    assert "Entropy" not in text and "After tool responses" not in text
    page = (tmp_path / "r.html").read_text()
    assert "awaiting" in page[page.index("<iframe") :]
    # with a tokenizer the same mentions, per token
    write_report(tmp_path / "t.html", [path], POLICY)
    text = visible_text(tmp_path / "t.html")
    assert "raml 3 wait 2, retry 0" in text and "sampled words" not in text
    assert "mentions per 1,000 tokens" in text


def test_files_of_token_ids_need_a_tokenizer(tmp_path):
    path = tmp_path / "ids.jsonl"
    path.write_text(json.dumps({"prompt_ids": [1, 2], "response_ids": [3, 4]}) + "\n")
    done = run_report(tmp_path / "r.html", path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "ids.jsonl, row 1" in done.stderr and "--tokenizer" in done.stderr
    assert not (tmp_path / "r.html").exists()
    # a server's texts are read, its ids and log-probabilities are not
    served = {"prompt": "Q?", "prompt_token_ids": [7, 8], "outputs": [{"text": " Oslo it is."}]}
    served["outputs"][0]["token_ids"] = [5, 6, 9]
    path.write_text(json.dumps(served) + "\n")
    (found,) = read_rollouts(path, WordTokenizer())
    assert found.generated.tolist() == [False, True, True, True]


def test_words_join_to_the_text():
    text = "<think>Wait,  what?\n\n東京は a<b </think> <answer>Ōsaka</answer>\t"
    words = WordTokenizer()
    ids = words.encode(text)
    assert words.decode(ids) == text
    assert [words.decode([i]) for i in ids] == [
        *("<think>", "Wait,", "  what?", "\n\n東", "京", "は", " a", "<", "b", " </think>"),
        *(" <answer>", "Ōsaka", "</answer>", "\t"),
    ]
    assert words.encode("a b") != words.encode("c d") and words.encode(" a") == [ids[6]]


@pytest.fixture
def hub(tmp_path):
    """A server on loopback with one model, acme/tiny, in the layout of the hub."""
    files = {path.name: path.read_bytes() for path in Path(POLICY).glob("*.json*")}

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            model, _, name = self.path.partition("/resolve/main/")
            body = b"{}" if self.path == "/api/models/acme/tiny" else None
            if model == "/acme/tiny":
                body = files.get(name)
            self.send_response(200 if body is not None else 404)
            if body is None:
                kind = "EntryNotFound" if "/acme/tiny/" in self.path else "RepoNotFound"
                self.send_header("X-Error-Code", kind)
            self.send_header("ETag", f'"{hashlib.sha256(body or b"").hexdigest()}"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

        do_HEAD = do_GET

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_tokenizer_is_loaded_by_hub_id(tmp_path, hub):
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CHATS))
    online = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}

    closed = online | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    offline = closed | {"HF_HUB_OFFLINE": "1"}

    def reports(*names, **environment):
        typed = [(tmp_path / f"{at}.html", path, "--viewed", 0) for at in range(len(names))]
        typed = [(*one, "--tokenizer", name) for one, name in zip(typed, names, strict=True)]
        return start_reports(*typed, **environment)

    found, missing, no_folder = reports("acme/tiny", "acme/other", "./other", **online)
    assert found.returncode == 0, found.stderr
    write_report(tmp_path / "t.html", [path], POLICY, viewed=0)
    assert (tmp_path / "0.html").read_bytes() == (tmp_path / "t.html").read_bytes()
    # from the cache without a network
    cached, unreachable = reports("acme/tiny", "acme/other", **closed)
    assert cached.returncode == 0, cached.stderr
    (forbidden,) = reports("acme/other", **offline)
    for name, done, words in (
        ("acme/other", unreachable, ("cannot be reached", "download", "pass its path")),
        ("acme/other", forbidden, ("HF_HUB_OFFLINE", "pass its path")),
        ("acme/other", missing, ("no such model on the hub",)),
        ("./other", no_folder, ("does not exist", "hub id")),
    ):
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
        assert all(word in done.stderr for word in (name, *words)), done.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.parquet", None, "missing.parquet"),
        ("empty.jsonl", b"", "empty.jsonl"),
        ("odd.jsonl", b'{"a": 1}\n', "odd.jsonl"),
        ("cut.parquet", b"PAR1junk", "cut.parquet"),
    ],
)
def test_invalid_files_are_rejected_without_a_report(name, content, message, tmp_path, capsys):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    typed = [str(tmp_path / "r.html"), str(tmp_path / name), "--tokenizer", POLICY]
    status, said = main(typed), capsys.readouterr()
    assert status == 1 and said.err.startswith("error: ") and message in said.err
    assert "Traceback" not in said.err and not said.out and not (tmp_path / "r.html").exists()


def test_input_file_is_never_overwritten(tmp_path):
    path = tmp_path / "a.parquet"
    save_trajectories(path, load_trajectories(f"{TOUR}/rl_sampled.parquet")[:2])
    before = path.read_bytes()
    done = run_report(path, path, "--tokenizer", POLICY)
    assert done.returncode == 1 and "the report must be a .html file" in done.stderr
    assert path.read_bytes() == before
    for option, value in (("--window", 0), ("--share", 3), ("--viewed", -1)):
        done = run_report(tmp_path / "r.html", path, option, value)
        assert done.returncode == 1 and str(value) in done.stderr, option


def test_plots_are_byte_identical_when_repeated(tmp_path):
    sft, rl, again = (
        token_statistics(f"{ENTROPY}/seed0_{name}.parquet") for name in ("sft", "rl", "rl_by_sft")
    )
    trajectory = load_trajectories(f"{ENTROPY}/seed0_sft.parquet")[300]
    lifts = {x.status: vars(x) for x in reflection.reflection_lift(sft, window=8, resamples=200)}
    panels = {
        "plot_histogram": ({"before": sft, "after": rl},),
        "plot_event_curves": (reflection.event_curves(sft, 8, 16, resamples=100),),
        "plot_lifts": (lifts,),
        "plot_entropy_strip": (trajectory,),
        "plot_entropy_changes": ({"seed 0": high_entropy_overlap(again, rl)},),
        "plot_word_grid": ([("then", 19, 1.1), ("now", 23, 0.9), ("so", 11, 0.0)],),
    }
    for name, arguments in panels.items():
        for copy in "ab":
            fig, ax = plt.subplots()
            getattr(entropy_plots, name)(ax, *arguments)
            fig.savefig(tmp_path / f"{name}{copy}.png", metadata={"Software": None})
            plt.close(fig)
        first, second = ((tmp_path / f"{name}{c}.png").read_bytes() for c in "ab")
        assert first == second and len(first) > 3000, name


def test_strip_pairs_have_one_strip_per_policy():
    pairs = [
        tuple(
            load_trajectories(f"{ENTROPY}/seed0_{name}.parquet")[i] for name in ("rl_by_sft", "rl")
        )
        for i in (216, 340)
    ]
    tokenizer = load_tokenizer(f"{ENTROPY}/../tour/policy_rl")
    strips = entropy_plots.plot_strip_pairs(pairs, tokenizer).axes[:4]
    assert [ax.get_ylabel() for ax in strips] == ["before RL", "after RL"] * 2
    titles = [ax.get_title(loc="left") or ax.get_title() for ax in strips[::2]]
    assert titles == [
        f"{pair[0].metadata['question']} ({'correct' if pair[0].reward else 'wrong'})"
        for pair in pairs
    ]
    plt.close("all")
