"""Plugin with the agent of tests/openai_agent.py; logs a line per request to EXTERNAL_LOG."""

import os

from openai import OpenAI

from drlib import register
from drlib.agents import ExternalAgent
from tests import openai_agent


@register.agent("openai_test")
class OpenAITest(ExternalAgent):
    """Without concurrent requests, whose order is a matter of chance."""

    def work(self, access):
        with OpenAI(base_url=access.base_url, api_key=access.api_key) as client:
            complete = client.chat.completions.create

            def logged(**arguments):
                with open(os.environ["EXTERNAL_LOG"], "a", encoding="utf-8") as log:
                    log.write(f"{access.api_key}\n")
                return complete(**arguments)

            client.chat.completions.create = logged
            return openai_agent.answer(client, access.task.question, access.call_tool, checks=0)
