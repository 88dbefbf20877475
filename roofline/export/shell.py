"""Shell text as people paste it: variables, arrays, continued lines and comments, to words.

Nothing is run. ``$NAME``, ``${NAME}``, ``${NAME:-8}``, ``"${NAME[@]}"`` and whole-number
``$((A * B))`` are replaced where the text itself gives their values; others stay as they are.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

ASSIGNMENT = re.compile(
    r"(?:(?<=\s)|(?<=;)|^)(?:export\s+|declare\s+(?:-\w+\s+)?|local\s+)?"
    r"([A-Za-z_]\w*)(\+?)="
    r"(\$\(\(.*?\)\)|\$\([^)]*\)|\((?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|\$\(\([^)]*\)\)|[^()\"'])*\)"
    r"|\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s;]*)",
    re.DOTALL,
)
VARIABLE = re.compile(r"\$\{(\w+)(?:\[[@*]\])?(?::?-([^}]*))?\}|\$(\w+)")
ARITHMETIC = re.compile(r"\$\(\(([^()]*)\)\)")
END = {"|", "||", "&&", "&", ";", ">", ">>", "2>&1", "<"}
DEPTH = 20  # of variables in variables
MAX_TEXT = 1_000_000


def words(text: str, keep: Collection[str] = ()) -> list[str]:
    """The words of a command, variables replaced.

    Args:
        keep: names whose ``name=value`` is a word of the command, not a variable.

    Raises:
        ValueError: an open quotation, or more text than any launch script has.

    >>> words("TP=8\\ntrain --tp $TP --pp=${PP:-4}  # eight")
    ['train', '--tp', '8', '--pp=4']
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"text: {len(text)} characters are refused; allowed: up to {MAX_TEXT}")
    plain = re.sub(r"\\[ \t]*\r?\n", " ", _uncommented(text))
    plain = re.sub(r'"(\$\{\w+\[[@*]\]\})"', r"\1", plain)  # an array is words, not one word
    values = _assigned(plain, keep)
    command = ASSIGNMENT.sub(lambda m: m[0] if m[1] in keep else " ", plain)
    for name, value in values.items():
        if re.search(r"(?:^|\s)--\w", value) and not _used(name, plain):
            command += f" {value}"  # options in a variable that the pasted part does not use
    try:
        return shlex.split(substituted(command, values), comments=False)
    except ValueError as error:
        raise ValueError(f"text: {error}; allowed: shell words with closed quotations") from None


def substituted(text: str, values: Mapping[str, str]) -> str:
    """The text with variables and arithmetic replaced where their values are known."""
    for _ in range(DEPTH):
        before = text
        text = VARIABLE.sub(lambda found: _value(found, values), text)
        text = ARITHMETIC.sub(partial(_computed, values=values), text)
        if text == before or len(text) > MAX_TEXT:
            break
    return text


def _uncommented(text: str) -> str:
    """Without what follows a ``#`` that begins a word, outside quotations."""
    kept, quote, comment, before = [], "", False, "\n"
    for letter in text:
        if letter == "\n":
            comment = False
        elif comment:
            continue
        elif quote:
            quote = "" if letter == quote and before != "\\" else quote
        elif letter in "\"'" and before != "\\":
            quote = letter
        elif letter == "#" and before in " \t\n(;":
            comment = True
            continue
        kept.append(letter)
        before = letter
    return "".join(kept)


def _assigned(text: str, keep: Collection[str]) -> dict[str, str]:
    """Variables and their last values; ``TP=${TP:-8}`` is 8, or what TP was before."""
    values: dict[str, str] = {}
    for name, more, value in ASSIGNMENT.findall(text):
        if name in keep:
            continue
        quoted = value[:1] in ("'", '"') or (value[:1] == "(" and value[-1:] == ")")
        whole = value[1:-1] if quoted else value
        own = {name: values[name]} if name in values else {}
        itself = re.compile(VARIABLE.pattern.replace(r"\w+", rf"{name}\b"))
        whole = itself.sub(partial(_value, values=own), whole)
        whole = substituted(whole, values)
        values[name] = f"{values.get(name, '')} {whole}" if more else whole
    return values


def _used(name: str, text: str) -> bool:
    return re.search(rf"\$\{{?{name}\b", text) is not None


def _value(found: re.Match[str], values: Mapping[str, str]) -> str:
    known = values.get(found[1] or found[3])
    if known is not None:
        return known
    return found[2] if found[2] is not None else found[0]


def _computed(found: re.Match[str], values: Mapping[str, str]) -> str:
    """Whole-number arithmetic, where every variable has a value."""
    try:
        return str(_number(ast.parse(found[1].strip(), mode="eval").body, values))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return found[0]


def _number(node: Any, values: Mapping[str, str]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name) and values.get(node.id, "").isdigit():
        return int(values[node.id])
    if isinstance(node, ast.BinOp):
        one, other = _number(node.left, values), _number(node.right, values)
        if isinstance(node.op, ast.Mult):
            return one * other
        if isinstance(node.op, ast.Div | ast.FloorDiv):
            return one // other
        if isinstance(node.op, ast.Add):
            return one + other
        if isinstance(node.op, ast.Sub):
            return one - other
    raise ValueError("no whole-number arithmetic")
