"""The templater's prompt, a pure function of journal, plan and branch; its worked example is the library's most similar
task, by traits of the plain source, or in CUDA the kit, that task's headers first. Retrieval of that kind is the idea
of Trümper et al., "Performance Embeddings" (ICS 2023); theirs are learned, these are counted, for a handful of kernels.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

from tunesmith.graph.context import Context
from tunesmith.graph.journal.log import REJECTED, Tree
from tunesmith.graph.models.calls import Message
from tunesmith.graph.prompts import conversation, render, scrubbed
from tunesmith.graph.prompts.facts import choices, node_facts, run_facts
from tunesmith.graph.state import Branch, Plan
from tunesmith.kernels.build.guard import HEADER_FOLDERS, HEADERS
from tunesmith.kernels.build.source import kit
from tunesmith.kernels.spec.expression import FUNCTIONS
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import library_tasks, read_task
from tunesmith.kernels.spec.template import BackendName, Template

_TRAITS = (
    r"\b(?:__syncthreads|barrier|work_group_barrier)\s*\(",
    r"\b__shared__\b|\b__local\b|\blocal\s+\w|\b__shfl|\bsub_group_",
    r"\batom(?:ic)?[A-Z_]\w*\s*\(",
    r"\b(?:for|while)\s*\(",
    r"\b(?:native_|__|h|f)?(?:exp|log|sqrt|rsqrt|tanh|erf|sin|cos|pow)\w*\s*\(",
)
"""Patterns of barriers, shared memory, atomics, loops and functions beyond arithmetic in a source."""
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)

MAX_EXAMPLE = 12_000
"""Most characters of a template that serves as the example, some 4,000 tokens: the example is most of a prompt."""


def features(task: Task, backend: BackendName) -> tuple[float, ...]:
    """The features of `task`, of similar weight: how often its source has each trait, up to twice; the logarithm of
    elements written per element read, which is below 0 for a kernel that reduces."""
    source = _COMMENT.sub(" ", task.sources(backend).baseline.template.source)
    counts = {"in": 0, "out": 0, "inout": 0, "scalar": 0}
    for argument in task.arguments:
        counts[argument.role] += math.prod(task.shape_of(argument, task.workloads[0]))
    read, written = counts["in"] + counts["inout"], counts["out"] + counts["inout"]
    return (
        *(min(2, len(re.findall(pattern, source))) for pattern in _TRAITS),
        math.log(max(written, 1) / max(read, 1), 8),
    )


def example(task: Task, backend: BackendName) -> dict[str, Any] | None:
    """The library's task nearest to `task`, of another name, and its template; among equals the first by name."""
    own = features(task, backend)
    others = [pair for pair in _library(backend) if pair[0].name != task.name]
    if not others:
        return None
    shown, template = min(others, key=lambda pair: (math.dist(own, features(pair[0], backend)), pair[0].name))
    return {"name": shown.name, "summary": shown.summary, "source": template.source, "choices": choices(template)}


@functools.cache
def _library(backend: BackendName) -> tuple[tuple[Task, Template], ...]:
    """Each task with its first template that is short enough."""
    pairs = []
    for task in map(read_task, library_tasks().values()):
        templates = task.sources(backend).templates if backend in task.backends else ()
        pairs += [(task, each) for each in templates if len(each.source) <= MAX_EXAMPLE][:1]
    return tuple(pairs)


_PARSER = Parser(Language(tree_sitter_cuda.language()))
_SENTENCE = re.compile(r".+?\.(?= [A-Z]|$)|.+")


@functools.cache
def interface(header: str) -> tuple[str, str]:
    """What a header of the kit has, a sentence, and its declarations that comments document, without bodies, each below
    the first sentence of its comment."""
    source = kit()[header]
    about = " ".join(re.findall(r"^// (.*)", source.partition("\n\n")[0], re.MULTILINE))
    spaces = [node for node in _PARSER.parse(source.encode()).root_node.children if node.type == "namespace_definition"]
    return _SENTENCE.findall(about)[0], "\n".join(line for one in spaces for line in _declared(one.children[-1]))


def _declared(body: Node) -> Iterator[str]:
    """The lines of the documented members of a namespace or struct: a comment is about what follows, up to a gap."""
    comment, documented, end = list[str](), False, -1
    for node in body.named_children:
        text, follows = (node.text or b"").decode(), node.start_point[0] == end + 1
        if node.type == "comment":
            if node.start_point[0] > end:  # not behind a member
                comment = [*(comment if follows else ()), text.removeprefix("// ")]
        else:
            documented = follows and (documented or bool(comment)) and not node.type.startswith("preproc")
            if documented:
                yield from (f"// {one}" for one in _SENTENCE.findall(" ".join(comment))[:1])
                yield from _declaration(node)
            comment = []
        end = node.end_point[0] - (node.end_point[1] == 0)


def _declaration(node: Node) -> Iterator[str]:
    """The lines of a declaration, without bodies of functions and without undocumented members."""
    text, members = node.text or b"", list[str]()
    for body in reversed([*_bodies(node)]):
        text = text[: body.start_byte - node.start_byte] + text[body.end_byte - node.start_byte :]
        members += _declared(body) if body.type == "field_declaration_list" else ()
    head = re.sub(r"__(?:device|forceinline)__ ", "", " ".join(text.decode().split())).rstrip(" ;")
    yield head + (" {" if members else ";")
    yield from (f"    {line}" for line in members)
    yield from ["};"] * bool(members)


def _bodies(node: Node) -> Iterator[Node]:
    """Bodies and initialisers of functions, and of structs that have functions."""
    initialises = node.type in ("compound_statement", "field_initializer_list")
    if initialises or (node.type == "field_declaration_list" and b"(" in (node.text or b"")):
        yield node
    else:
        for one in node.children:
            yield from _bodies(one)


MAX_DESCRIPTION = 300
"""Characters of a kernel's own description in the history."""


def template_messages(
    context: Context, plan: Plan, branch: Branch, tree: Tree, objections: list[str]
) -> tuple[Message, ...]:
    """The prompt of one branch of a round, for a template or, in a rewrite, for a whole kernel."""
    facts = run_facts(context, tree, {plan.bottleneck})
    node, limits = tree.node(branch.parent), context.device.limits
    parameters, anew = branch.kind != "rewrite", branch.kind in ("template", "rewrite")
    # A template of this run shows the form of an answer, and also what matters for this task.
    own = [each for each in tree.ranked if each.template.has_choices]
    shown_by_parent = node is not None and node.template.has_choices
    sibling = own[0] if parameters and own and not shown_by_parent else None
    system = partial(
        render,
        "template_system",
        task=facts["task"],
        device=facts["device"],
        limits=limits,
        types=sorted(context.task.types),
        headers=sorted(HEADERS),
        folders=HEADER_FOLDERS,
        functions=[f"{name}()" for name in FUNCTIONS],
        parameters=parameters,
        kind=branch.kind,
    )
    shown = example(context.task, limits.backend) if parameters and not shown_by_parent and not sibling else None
    with_kit = shown is not None and context.settings.kit and limits.backend == "cuda"
    user = render(
        "template",
        **facts,
        # A branch that keeps the parent's organisation needs no facts about the machine.
        parent=node_facts(context, node, source=True, machine=anew) if node is not None else None,
        sibling=node_facts(context, sibling, source=True) if sibling is not None else None,
        plan=plan,
        branch=branch,
        objections=objections,
        parameters=parameters,
        history=_history(tree, branch.parent) if anew else [],
    )
    return conversation(_with_kit(system, shown) if with_kit and shown else system(example=shown, kit=""), user)


GENERAL = ("kit/vectors.cuh", "kit/views.cuh", "kit/reduce.cuh", "kit/rows.cuh", "kit/tiles.cuh")
"""Headers of the kit that any kernel may need."""


def _with_kit(system: Callable[..., str], shown: dict[str, Any]) -> str:
    """The system's prompt with the kit in place of the example `shown`, and no longer: as far as there is room, headers
    by their interfaces, those that the example includes before the general ones, and others by a line."""
    # Without the blocks of the rules, which are for their templates alone.
    headers = {name: interface(name) for name in kit() if "namespace kit" in kit()[name]}
    room, known, made = len(system(example=shown, kit="")), dict[str, str](), ""
    for name in ("", *dict.fromkeys([*_included(shown["source"]), *GENERAL])):
        wider = known | ({name: headers[name][1]} if name else {})
        others = {one: about for one, (about, _) in headers.items() if one not in wider}
        text = system(example=None, kit=render("kit", shown=wider, others=others))
        if not name or len(text) <= room:
            known, made = wider, text
    return made


def _included(source: str) -> list[str]:
    """The headers of the kit that a source includes, each behind those that it includes itself."""
    names = re.findall(r'^#include "(kit/\w+\.cuh)"', source, re.MULTILINE)
    return [one for name in names for one in (*_included(kit()[name]), name)]


def _history(tree: Tree, parent: str) -> list[str]:
    """The results of all other kernels and templates, a line each, so that none of them is written again."""
    failures = {node.id: f"{REJECTED}, {node.rejected[0][1]}" for node in tree.nodes if node.rejected}
    measured = [
        f"round {node.round}, {node.made_by}: {' '.join(node.template.description.split())[:MAX_DESCRIPTION]}: "
        + (f"{1 / node.best:.3f}x the baseline's speed" if node.best else failures.get(node.id, "not measured"))
        for node in tree.nodes
        if node.round and node.id != parent
    ]
    failed = [
        f"round {each.round}, {each.made_by}: {'; '.join(each.moves)[:MAX_DESCRIPTION]}: {each.problem[:1500]}"
        for each in tree.attempts
    ]
    return [scrubbed(line) for line in measured + failed]
