"""`drlib mcp WORLD`: serve search, visit and python to clients of the Model Context Protocol."""

import argparse
import asyncio
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from drlib.cli.examples import add_examples
from drlib.registry import load_plugins
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.worlds import load_world

RESULTS = 5  # hits per search


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command until the client leaves; return 0, or 1 with the cause on stderr."""
    parser = argparse.ArgumentParser(prog="drlib mcp", description=__doc__)
    add_examples(parser, "drlib mcp folder:notes", "drlib mcp cldr --port 8000")
    parser.add_argument("world", help="name passed to load_world")
    parser.add_argument(
        "--port",
        type=int,
        help="serve http://127.0.0.1:PORT/mcp, 0 for a free port (default: standard input/output)",
    )
    parser.add_argument("--index", help="index file of the world (default: in memory)")
    parser.add_argument("--no-python", action="store_true", help="offer no tool that runs programs")
    parser.add_argument("--plugins", default="", help="modules that register tools or worlds")
    args = parser.parse_args(argv)
    with ExitStack() as stack:
        try:
            from drlib.tools.mcp import create_server

            load_plugins(args.plugins)
            world = load_world(args.world, args.index)
            sandbox = None if args.no_python else stack.enter_context(Sandbox(workers=1))
            toolbox = stack.enter_context(Toolbox(world, sandbox, results=RESULTS, coerce=True))
            server = create_server(toolbox, f"drlib {world.name}")
        except (ValueError, OSError, ImportError) as error:
            print(f"drlib mcp: {error}", file=sys.stderr)
            return 1
        try:
            if args.port is None:
                asyncio.run(_serve_stdio(server))
            else:
                _serve_http(server, args.port)
        except KeyboardInterrupt:
            pass
        except OSError as error:
            print(f"drlib mcp: port {args.port}: {error}", file=sys.stderr)
            return 1
    return 0


async def _serve_stdio(server) -> None:
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _serve_http(server, port: int) -> None:
    """Serve on loopback; the SDK refuses requests of other sites (DNS rebinding)."""
    import uvicorn

    with socket.create_server(("127.0.0.1", port)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        print(f"serving {address} (Ctrl-C stops it)", file=sys.stderr, flush=True)
        app = server.streamable_http_app(host="127.0.0.1")
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
        uvicorn.Server(config).run(sockets=[listener])
