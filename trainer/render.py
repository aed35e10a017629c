"""Turns an episode's text into the tokens that a policy reads, and its tokens into commands.

Token-in, token-out: a context only ever grows by appending. What the policy sampled stays as it was
sampled; a renderer adds the tokens of the next observation behind it. Nothing is tokenised twice,
so the learner trains on exactly the tokens that the engine saw. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from jinja2.exceptions import TemplateError

ACTION_START = "<act>"
"""Plain policies: the token behind an observation, after which the policy writes its action."""
VERB_LAST = "verb_last"
"""Setting in the tokenizer's configuration (`tokenizer_config.json`): say the first word of an action last."""

Message = dict[str, str]


class PolicyError(Exception):
    """A model or tokenizer cannot serve as a policy; the text says what, why and what to do."""


class Renderer(Protocol):
    """The text side of a policy. Ids appended in the order `first`, action, `following`, action, … make a context."""

    stop_ids: tuple[int, ...]
    """An action ends with (and includes) the first of these."""
    close_ids: tuple[int, ...]
    """Closes an action that ran into its length limit: append these (as tokens that nobody sampled)
    before the ids of `following`."""

    def first(self, observation: str) -> list[int]:
        """Ids of the prompt: everything up to the first action."""

    def following(self, observation: str) -> list[int]:
        """Ids behind the stop token of an action, up to where the next action starts."""

    def action_ids(self, text: str) -> list[int]:
        """Ids of an action, stop token included.

        Raises:
            PolicyError: the tokenizer cannot express the text.
        """

    def action_text(self, ids: Sequence[int]) -> str:
        """The command that sampled ids stand for, without its stop token."""


def make_renderer(tokenizer: Any, instructions: str) -> Renderer:
    """The renderer that fits a tokenizer: by its chat template, or plain for the policies made here.

    Raises:
        PolicyError: the tokenizer has neither a chat template nor the plain action token, or its
            chat template rewrites earlier turns.
    """
    if getattr(tokenizer, "chat_template", None):
        return ChatRenderer(tokenizer, instructions)
    return PlainRenderer(tokenizer)


class PlainRenderer:
    """`<bos> observation <act> action <eos> observation <act> …`, for tokenizers of `build_tokenizer`.

    Such a tokenizer may want the first word of an action said last.
    """

    def __init__(self, tokenizer: Any) -> None:
        start = tokenizer.get_vocab().get(ACTION_START)
        if start is None or tokenizer.bos_token_id is None or tokenizer.eos_token_id is None:
            raise PolicyError(
                f"The tokenizer has no chat template and no {ACTION_START} token, so it is not known how to show it "
                "an episode. Use an instruction-tuned model, or set `chat_template` in its tokenizer."
            )
        self._tokenizer = tokenizer
        self._start: int = start
        self._end: int = tokenizer.eos_token_id
        self._verb_last = bool(tokenizer.init_kwargs.get(VERB_LAST, False))
        self.stop_ids: tuple[int, ...] = (self._end,)
        self.close_ids: tuple[int, ...] = (self._end,)

    def first(self, observation: str) -> list[int]:
        return [self._tokenizer.bos_token_id, *self._words(observation), self._start]

    def following(self, observation: str) -> list[int]:
        return [*self._words(observation), self._start]

    def action_ids(self, text: str) -> list[int]:
        ids = self._words(text)
        if self._tokenizer.unk_token_id in ids:
            raise PolicyError(
                f"The action {text!r} has words that the policy's vocabulary lacks. "
                "Train the tokenizer on texts that contain them (`build_tokenizer`)."
            )
        if self._verb_last:
            ids = [*ids[1:], *ids[:1]]
        return [*ids, self._end]

    def action_text(self, ids: Sequence[int]) -> str:
        # Special tokens inside an action are kept, so that the environment refuses what was not a command.
        kept = list(ids[:-1] if ids and ids[-1] == self._end else ids)
        if self._verb_last:
            kept = [*kept[-1:], *kept[:-1]]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False))

    def _words(self, text: str) -> list[int]:
        # Marks such as "<act>" written by an environment are text, never control tokens.
        return list(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


class ChatRenderer:
    """User and assistant turns of a chat template; observations are the user's.

    The ids of a later turn come from rendering a short dummy conversation and taking what stands
    behind its dummy answer. That is right only for templates that never change earlier turns, which
    the constructor checks. Reasoning before a last `</think>` is not part of the command.
    """

    _DUMMY = "dummy-answer-of-the-assistant"
    _PROBE = "An observation, of 2 lines.\nIt ends here."

    def __init__(self, tokenizer: Any, instructions: str) -> None:
        self._tokenizer = tokenizer
        self._instructions = instructions
        self._special: list[str] = sorted(
            (t.content for t in tokenizer.added_tokens_decoder.values() if t.special), key=len, reverse=True
        )
        self._system = self._takes_system_role()
        self._turn_end = self._find_turn_end()
        turn_end_id = int(tokenizer.convert_tokens_to_ids(self._turn_end))
        eos = tokenizer.eos_token_id
        self.stop_ids: tuple[int, ...] = (turn_end_id,) if eos in (None, turn_end_id) else (turn_end_id, int(eos))
        self.close_ids: tuple[int, ...] = (turn_end_id,)
        self._check_append_only()

    def first(self, observation: str) -> list[int]:
        return self._encode(self._render(self._opening(self._defuse(observation))))

    def following(self, observation: str) -> list[int]:
        tail = self._tail(self._defuse(observation))
        # The stop token in front keeps the tokenizer from treating the tail as the start of a text.
        return self._encode(self._turn_end + tail)[1:]

    def action_ids(self, text: str) -> list[int]:
        return [*self._encode(self._defuse(text)), self.close_ids[0]]

    def action_text(self, ids: Sequence[int]) -> str:
        text = str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
        return text.rpartition("</think>")[2].strip()

    def _opening(self, observation: str) -> list[Message]:
        if not self._instructions:
            return [{"role": "user", "content": observation}]
        if self._system:
            return [{"role": "system", "content": self._instructions}, {"role": "user", "content": observation}]
        return [{"role": "user", "content": f"{self._instructions}\n\n{observation}"}]

    def _conversation(self, *observations: str) -> list[Message]:
        """The opening, then a dummy answer before each further observation."""
        messages = self._opening(observations[0])
        for observation in observations[1:]:
            messages += [{"role": "assistant", "content": self._DUMMY}, {"role": "user", "content": observation}]
        return messages

    def _tail(self, observation: str) -> str:
        """Text behind the stop token of the dummy answer, the next generation prompt included."""
        text = self._render(self._conversation(self._PROBE, observation))
        return text.partition(self._DUMMY)[2].partition(self._turn_end)[2]

    def _render(self, messages: list[Message], generate: bool = True) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate))

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _defuse(self, text: str) -> str:
        """Control tokens quoted in an observation stay text: it cannot open a turn of its own."""
        for mark in self._special:
            if mark in text:
                text = text.replace(mark, f"{mark[0]} {mark[1:]}")
        return text

    def _takes_system_role(self) -> bool:
        """False for templates that refuse a system message (Gemma); the instructions then open the first turn."""
        try:
            text = self._render([{"role": "system", "content": self._DUMMY}, {"role": "user", "content": self._PROBE}])
        except TemplateError:
            return False
        return self._DUMMY in text

    def _find_turn_end(self) -> str:
        """The special token right behind an assistant's answer."""
        try:
            text = self._render(self._conversation(self._PROBE, self._PROBE))
        except TemplateError as error:
            raise PolicyError(
                f"The tokenizer's chat template refuses alternating user and assistant turns: {error}. "
                "Use an instruction-tuned model with a template for plain dialogues."
            ) from error
        behind = text.partition(self._DUMMY)[2].lstrip()
        for mark in self._special:
            if behind.startswith(mark):
                return mark
        raise PolicyError(
            "The tokenizer's chat template puts no special token behind an assistant turn, so a policy could not end "
            "its action. Use a template that closes turns with a special token (as ChatML and Llama 3 do)."
        )

    def _check_append_only(self) -> None:
        shorter = self._render(self._conversation(self._PROBE), generate=False)
        longer = self._render(self._conversation(self._PROBE, self._PROBE), generate=False)
        longest = self._render(self._conversation(self._PROBE, self._PROBE, self._PROBE), generate=False)
        if not (longer.startswith(shorter) and longest.startswith(longer)):
            raise PolicyError(
                "The tokenizer's chat template rewrites earlier turns when a new one is added, so a trajectory could "
                "not be trained on the tokens that were sampled. Set a template that only appends in the tokenizer."
            )
        whole = self._encode(self._render(self._conversation(self._PROBE, self._PROBE)))
        tail = self.following(self._PROBE)
        if whole[-len(tail) :] != tail:
            raise PolicyError(
                "The tokenizer splits the text behind a stop token differently alone and in context, so turns cannot "
                "be appended token by token. Use the model's fast tokenizer (tokenizer.json)."
            )
