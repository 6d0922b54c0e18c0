"""Chat templates, tool-call format and parser, token segments, and prompts."""
