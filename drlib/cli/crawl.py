"""`drlib crawl URL FOLDER`: save a web site as a folder of Markdown, which is a world."""

import argparse
import json
import sys
from collections.abc import Sequence

from drlib.tools.crawl import Crawl
from drlib.tools.fetch import PageReader


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="drlib crawl",
        description="Crawl a web site into a folder of Markdown, which can be loaded as a world.",
    )
    parser.add_argument(
        "url", help="address of the first page; only its folder on its host is crawled"
    )
    parser.add_argument("out", help="output folder")
    parser.add_argument("--pages", type=int, default=200, help="largest number of pages (200)")
    parser.add_argument("--delay", type=float, default=1.0, help="seconds between requests (1)")
    parser.add_argument("--private", action="store_true", help="allow a site in the local network")
    args = parser.parse_args(argv)
    try:
        reader = PageReader(allow_private=args.private)
        crawl = Crawl(args.url, args.out, pages=args.pages, delay_s=args.delay, reader=reader)
        ends = crawl.run(lambda line: print(line, file=sys.stderr))
    except (ValueError, ImportError, ConnectionError) as fault:
        print(f"drlib crawl: {fault}", file=sys.stderr)
        return 1
    print(json.dumps(dict(ends)))
    print(f'the world: load_world("folder:{args.out}")')
    return 0
