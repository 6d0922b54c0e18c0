"""`drlib crawl URL FOLDER`: save a web site as a folder of Markdown, to be loaded as a world."""

import argparse
import json
import sys
from collections.abc import Sequence

from drlib.cli.examples import add_examples
from drlib.tools.crawl import Crawl
from drlib.tools.fetch import PageReader


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 with the cause on stderr."""
    parser = argparse.ArgumentParser(prog="drlib crawl", description=__doc__)
    add_examples(parser, "drlib crawl https://example.org/docs/ site --pages 50")
    parser.add_argument("url", help="address of the first page; the crawl stays below its folder")
    parser.add_argument("out", help="output folder")
    parser.add_argument("--pages", type=int, default=200, help="maximum number of pages (200)")
    parser.add_argument("--delay", type=float, default=1.0, help="seconds between requests (1)")
    parser.add_argument("--private", action="store_true", help="allow a site in the local network")
    args = parser.parse_args(argv)
    try:
        reader = PageReader(allow_private=args.private)
        crawl = Crawl(args.url, args.out, pages=args.pages, delay_s=args.delay, reader=reader)
        counts = crawl.run(lambda line: print(line, file=sys.stderr))
    except (ValueError, ImportError, ConnectionError) as error:
        print(f"drlib crawl: {error}", file=sys.stderr)
        return 1
    print(json.dumps(dict(counts)))
    print(f'load it with load_world("folder:{args.out}")')
    return 0
