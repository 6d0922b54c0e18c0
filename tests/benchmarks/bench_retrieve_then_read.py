"""Retrieve, then read: the baseline without an agent, on the documents of profile `smol-reader`.

One search with the question; the model gets the first page and the question, and answers greedily.
The questions are those of the profile's evaluation. An answer counts as *exact* under drlib's
comparison, and as *contained* if the correct answer is in it; small models answer in sentences.

Run: OMP_NUM_THREADS=2 PYTHONPATH=. python tests/benchmarks/bench_retrieve_then_read.py --out FILE
"""

import argparse
import json
from pathlib import Path

import torch

from drlib.chat.template import load_any_tokenizer
from drlib.config import Config, split_worlds
from drlib.demonstrations.document_teacher import draw_document_questions
from drlib.files import write_atomic
from drlib.models.moe import load_model
from drlib.task import is_correct, normalise_answer

PROMPT = "{page}\n\nQuestion: {question}\nAnswer in a few words, with words of the text."
MAX_PAGE_TOKENS, MAX_ANSWER_TOKENS, BATCH = 1500, 24, 8


def ask_all(model, tokenizer, pages: list[str], questions: list[str]) -> list[str]:
    """Return the greedy reply to each page and question."""
    replies = []
    for start in range(0, len(questions), BATCH):
        prompts = []
        for page, question in zip(pages[start:], questions[start : start + BATCH]):
            ids = tokenizer(page, add_special_tokens=False).input_ids[:MAX_PAGE_TOKENS]
            text = PROMPT.format(page=tokenizer.decode(ids), question=question)
            messages = [{"role": "user", "content": text}]
            prompts.append(
                tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            )
        batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            ids = model.generate(**batch, max_new_tokens=MAX_ANSWER_TOKENS, do_sample=False)
        new = ids[:, batch["input_ids"].shape[1] :]
        replies += tokenizer.batch_decode(new, skip_special_tokens=True)
    return [reply.strip() for reply in replies]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smol", help="model folder, or smol")
    parser.add_argument("--out", type=Path, help="write the rows to this file")
    args = parser.parse_args()
    config = Config.load("smol-reader")
    model, tokenizer = load_model(args.model), load_any_tokenizer(args.model)
    tokenizer.padding_side = "left"
    rows = []
    for name in split_worlds(config.evaluation.documents):
        world, drawn = draw_document_questions(
            name, config.evaluation.questions, config.evaluation.seed
        )
        tasks = [question.task for question in drawn]
        hits = [world.search(task.question, 1) for task in tasks]
        pages = [world.page(some[0].url).text if some else "" for some in hits]
        replies = ask_all(model, tokenizer, pages, [task.question for task in tasks])
        pairs = [*zip(replies, tasks)]
        contained = sum(normalise_answer(t.answer) in normalise_answer(r) for r, t in pairs)
        found = sum(q.quotes[-1][1] == some[0].url for q, some in zip(drawn, hits) if some)
        rows.append(
            {
                "folder": Path(name).name,
                "questions": len(tasks),
                "page_found": found,
                "exact": sum(is_correct(reply, task) for reply, task in pairs),
                "contained": contained,
                "replies": [[task.question, task.answer, reply] for reply, task in pairs][:10],
            }
        )
        print({key: value for key, value in rows[-1].items() if key != "replies"}, flush=True)
    if args.out:
        write_atomic(args.out, json.dumps({"model": args.model, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
