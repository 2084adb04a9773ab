"""Grammars on a real engine with random weights, which knows nothing about JSON: greedy and sampled, alone and beside
free text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.router.grammar.walking import Vocabulary
from tests.support.checkpoints import EOS_ID, make_checkpoint
from tests.support.inprocess import InProcessReplica, load_engine
from text_generation_router.grammar.spec import GrammarSpec, json_spec, regex_spec
from text_generation_router.scheduling.request import Constraint, FinishReason, Request, SamplingParameters, TokenEvent
from text_generation_router.scheduling.sequence import Sequence
from text_generation_router.tokenizer import Tokenizer
from text_generation_server.engine import Engine

PERSON = {
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["x", "y\n", None]}, "maxItems": 3},
        "more": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    },
    "required": ["name", "age", "more"],
}
NUMBER = "[0-9]{4}"
FREE = (Request((5, 6, 7), 40), Request((40, 50, 60, 70), 40, sampling=SamplingParameters(do_sample=True, seed=4)))


@dataclass
class ConstrainedReplica(InProcessReplica):
    """As the real replica does it: the next mask is set when the last token has come."""

    constraints: dict[int, tuple[Sequence, Constraint, int]] = field(default_factory=dict)

    def submit_constrained(self, request: Request, constraint: Constraint) -> Sequence:
        sequence = self.scheduler.submit(request, constraint.mask())
        self.events[id(sequence)] = []
        self.constraints[id(sequence)] = sequence, constraint, 0
        return sequence

    def tick(self) -> bool:
        ran = super().tick()
        for key, (sequence, constraint, num_seen) in self.constraints.items():
            events = self.events[key]
            if len(events) > num_seen:
                self.constraints[key] = sequence, constraint, len(events)
                if events[-1].finish_reason is None:
                    constraint.accept(events[-1].token_id)
                    self.scheduler.set_mask(sequence, constraint.mask())
        return ran


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tiny"), max_position_embeddings=2048)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return load_engine(folder)


@pytest.fixture(scope="module")
def vocabulary(folder: Path) -> Vocabulary:
    return Vocabulary(Tokenizer.from_folder(folder), 320)


def replica_of(engine: Engine) -> ConstrainedReplica:
    return ConstrainedReplica(engine, num_blocks=512, max_total_tokens=600)


def request_of(seed: int | None, max_new_tokens: int = 400) -> Request:
    sampling = SamplingParameters() if seed is None else SamplingParameters(do_sample=True, seed=seed, temperature=0.7)
    return Request((1, 40 + (seed or 0), 50), max_new_tokens, frozenset({EOS_ID}), sampling)


def text_of(vocabulary: Vocabulary, events: list[TokenEvent]) -> str:
    return b"".join(vocabulary.data[event.token_id] for event in events if event.token_id != EOS_ID).decode()


@pytest.mark.parametrize("schema", [PERSON, {"properties": {"n": {"type": "number"}, "next": {"$ref": "#"}}}])
def test_answers_that_end_are_json_of_the_schema(engine: Engine, vocabulary: Vocabulary, schema: Any) -> None:
    grammar = vocabulary.compile(json_spec(schema, needs_properties=True))
    replica = replica_of(engine)
    sequences = [replica.submit_constrained(request_of(seed), grammar.constraint()) for seed in (None, *range(30))]
    replica.run()
    ended = 0
    for sequence in sequences:
        events = replica.events[id(sequence)]
        if events[-1].finish_reason is FinishReason.EOS_TOKEN:
            ended += 1
            Draft202012Validator(schema).validate(json.loads(text_of(vocabulary, events)))
        else:
            assert len(events) == 400
    assert ended >= len(sequences) // 2


@pytest.mark.parametrize("pattern", [NUMBER, "(yes|no), [a-z]{1,20}[.!]", "é{3}😀|[^a-zA-Z]{2}"])
def test_answers_match_the_whole_pattern_and_end_by_themselves(
    engine: Engine, vocabulary: Vocabulary, pattern: str
) -> None:
    grammar = vocabulary.compile(regex_spec(pattern))
    replica = replica_of(engine)
    sequences = [replica.submit_constrained(request_of(seed), grammar.constraint()) for seed in (None, *range(20))]
    replica.run()
    for sequence in sequences:
        events = replica.events[id(sequence)]
        assert events[-1].finish_reason is FinishReason.EOS_TOKEN
        assert re.fullmatch(pattern, text_of(vocabulary, events))


def test_grammars_beside_free_text_each_bind_their_own_request(engine: Engine, vocabulary: Vocabulary) -> None:
    """G33."""
    alone = [[event.token_id for event in replica_of(engine).answer(request)] for request in FREE]
    specs: list[GrammarSpec] = [json_spec(PERSON), regex_spec(NUMBER)]
    grammars = [vocabulary.compile(spec) for spec in specs]
    replica = replica_of(engine)
    free = [replica.submit(FREE[0])]
    bound = [replica.submit_constrained(request_of(3), grammar.constraint()) for grammar in grammars]
    free.append(replica.submit(FREE[1]))
    cut = replica.submit_constrained(request_of(None, max_new_tokens=3), grammars[0].constraint())
    replica.run()
    assert [[event.token_id for event in replica.events[id(sequence)]] for sequence in free] == alone
    person, number = (text_of(vocabulary, replica.events[id(sequence)]) for sequence in bound)
    Draft202012Validator(PERSON).validate(json.loads(person))
    assert re.fullmatch(NUMBER, number)
    assert [event.finish_reason for event in replica.events[id(cut)]] == [None, None, FinishReason.LENGTH]


def test_reported_logprobs_are_the_model_s_own(engine: Engine, vocabulary: Vocabulary) -> None:
    """A token that the grammar leaves no choice about is still as unlikely as the model finds it."""
    grammar = vocabulary.compile(regex_spec("zq~"))
    replica = replica_of(engine)
    sequence = replica.submit_constrained(request_of(None), grammar.constraint())
    replica.run()
    assert max(event.logprob for event in replica.events[id(sequence)][:-1]) < -1


def test_a_preempted_answer_goes_on_under_its_grammar(engine: Engine, vocabulary: Vocabulary) -> None:
    grammar = vocabulary.compile(regex_spec("[a-z]{150}"))
    answers = []
    for num_blocks in (512, 16):  # 16 hold one of the three answers
        replica = ConstrainedReplica(engine, num_blocks=num_blocks, max_total_tokens=256)
        sequences = [
            replica.submit_constrained(request_of(seed, max_new_tokens=200), grammar.constraint()) for seed in range(3)
        ]
        replica.run()
        answers.append([[event.token_id for event in replica.events[id(sequence)]] for sequence in sequences])
    assert answers[0] == answers[1]
