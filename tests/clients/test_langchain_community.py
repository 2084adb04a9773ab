"""What langchain-community does on top of text-generation's client."""

from __future__ import annotations

from tests.clients.clients import CLIENTS, ClientProcess
from tests.clients.expected import ENDING_PROMPT, MULTI_BYTE_PROMPT, PROMPT, Expected
from tests.support.asking import ask, client_of
from tests.support.servers import Server

NAME = "langchain-community"


def test_as_constructed_it_samples_by_its_own_settings(processes: dict[str, ClientProcess], server: Server) -> None:
    """It sends do_sample false beside them; the settings count."""
    text = processes[NAME].call("generate", url=server.url, prompt=PROMPT, seed=7, max_new_tokens=40)["text"]
    settings = {"do_sample": False, "temperature": 0.8, "top_p": 0.95, "typical_p": 0.95}
    with client_of(server) as client:
        assert text == ask(client, PROMPT, seed=7, max_new_tokens=40, **settings).text
        assert text != ask(client, PROMPT, max_new_tokens=40).text


def test_a_batch_keeps_the_order_of_its_prompts(
    processes: dict[str, ClientProcess], server: Server, expected: Expected
) -> None:
    prompts = [PROMPT, MULTI_BYTE_PROMPT, ENDING_PROMPT, "one", "two", "three"]
    greedy = CLIENTS[NAME].greedy
    texts = processes[NAME].call("batch", url=server.url, prompts=prompts, max_new_tokens=30, **greedy)
    assert texts == [expected.greedy_text(prompt, 30) for prompt in prompts]
