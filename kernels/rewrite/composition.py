"""Puts the changes of passes together: their order, what excludes what, the text of the source, and the launch.

Passes do not know of each other. Where two of them change the same code, the text of one is made with the edits of the
other in it; where two have no meaning together, a constraint says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tunesmith.kernels.build.source import rule_blocks
from tunesmith.kernels.rewrite.edits import Edit, Span, rendered, switched
from tunesmith.kernels.rewrite.facts import AXES, DEMANDED
from tunesmith.kernels.rewrite.passes.record import NO_GUARD, Change, Pass, Refused, Subject
from tunesmith.kernels.spec.template import BackendName, Constraint, LaunchGeometry, Parameter, Template

NAME = "by-rules"
DESCRIPTION = "Made of the baseline by rules; with every parameter at its default it computes as the baseline does."
ALONE = "The kernel as it came: no rule fits it."


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The result of the rules on a kernel. template: the kernel as it came where no rule applies, None where none was
    tried; skipped: why rules do not apply, a clause each, or why none was tried; rules: the changes of the rules that
    apply, by name, in their order; refused: the reason of each rule that does not."""

    template: Template | None
    skipped: tuple[str, ...] = ()
    rules: Mapping[str, Change] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def compose(plain: Template, subject: Subject, passes: Sequence[Pass], without: Mapping[str, str]) -> Rewritten:
    """The changes of the passes that apply to the kernel of `plain`, in one template. without: why some are not tried,
    by their names."""
    refused, found = dict[str, str](), dict[str, tuple[Pass, object]]()
    for one in (each for each in passes if subject.backend in each.languages):
        if one.name in without:
            refused[one.name] = without[one.name]
            continue
        try:
            found[one.name] = one, one.needs(subject)
        except Refused as why:
            refused[one.name] = f"{one.why}{why}"
    for name in _ordered([one for one, _ in found.values()]):
        one, match = found[name]
        try:
            subject.changes[name] = one.change(subject, match)
        except Refused as why:
            refused[name] = f"{one.why}{why}"
            del found[name]
    skipped = tuple(refused.values())
    why_not = [f"Not applied: {why}." for why in skipped]
    if not found:
        alone = plain.model_copy(update={"name": NAME, "description": " ".join([ALONE, *why_not])})
        return Rewritten(alone, skipped, refused=refused)
    changes = {name: subject.changes[name] for name in found}
    all_changes, code = list(changes.values()), subject.facts.syntax.code
    pairs = [pair for change in all_changes for pair in change.constraints.items()]
    pairs += [
        (f"{unchanged(changes[one.name])} or {unchanged(changes[other])}", because)
        for one, _ in found.values()
        for other, because in one.excludes.items()
        if other in changes
    ]
    launch, exact = _launch(subject, all_changes)
    constraints = [Constraint(expression=one, because=because) for one, because in (*pairs, *exact.items())]
    edits = [edit for change in all_changes for edit in change.edits] + _body(subject)
    if subject.so_far("block") and (demanded := subject.facts.ahead(DEMANDED)) is not None:
        edits.append(Edit(*demanded.span(), ("",)))
    blocks = kit(subject.backend, list(dict.fromkeys(name for change in all_changes for name in change.kit)))
    headers = [*(line for change in all_changes for line in change.header), *blocks, _coordinates(subject)]
    said = [f"{NO_GUARD[:-1]}: its configurations fit only shapes whose threads they divide."] if exact else []
    static = [one.static_shared for one in all_changes if one.static_shared]
    template = Template(
        name=NAME,
        backend=plain.backend,
        source="\n".join([*(one for one in headers if one), rendered(code, Span(0, len(code)), edits)]),
        entry=plain.entry,
        parameters=_parameters(all_changes),
        constraints=tuple(constraints),
        launch=launch,
        static_shared_bytes=" + ".join([plain.static_shared_bytes, *static]),
        max_registers=plain.max_registers,
        fast_math=next((one.fast_math for one in all_changes if one.fast_math), plain.fast_math),
        device_globals=plain.device_globals,
        description=" ".join([DESCRIPTION, *said, *why_not]),
    )
    return Rewritten(template, skipped, changes, refused)


def _ordered(passes: list[Pass]) -> list[str]:
    """The names in their order: each comes after all the names that it must follow."""
    names, waiting = list[str](), list(passes)
    while waiting:
        ready = next(one for one in waiting if not any(other.name in one.after for other in waiting))
        names.append(ready.name)
        waiting.remove(ready)
    return names


def _parameters(changes: list[Change]) -> tuple[Parameter, ...]:
    """The parameters of all changes, each with the values that others give it, behind its first one in their order."""
    more = [pair for change in changes for pair in change.extends.items()]
    found = list[Parameter]()
    for one in (parameter for change in changes for parameter in change.parameters):
        first, *rest = one.values
        values = sorted({*rest, *(value for name, those in more if name == one.name for value in those)}, key=float)
        found.append(one.model_copy(update={"values": (first, *values)}) if len(values) > len(rest) else one)
    return tuple(found)


def unchanged(change: Change) -> str:
    """The expression that holds where a change does nothing."""
    first = change.parameters[0]
    return change.off or (f"not {first.name}" if first.values[0] is False else f"{first.name} == {first.values[0]}")


def _body(subject: Subject) -> list[Edit]:
    """The layers around the kernel's body, the coordinates inside, and what ends an element in place of a thread."""
    layers = [layer for change in subject.changes.values() for layer in change.layers]
    if not layers:
        return []
    edits = list[Edit]()
    for axis in subject.work.axes:
        macro = subject.name(f"AT_{axis.name.upper()}")
        if any(layer.axis == axis.name for layer in layers):
            edits += [Edit(one.start, one.end, (f"{macro}(", Span(one.start, one.end), ")")) for one in axis.nodes]
    on = " || ".join(dict.fromkeys(layer.on for layer in layers))
    opens, closes = [layer.opens for layer in layers], [layer.closes for layer in reversed(layers)]
    if subject.returns and any(layer.loops for layer in layers):
        if subject.backend == "cuda":
            # A function of its own, so that a return ends one element and not all of them.
            opens, closes = [*opens, "[&] {"], ["}();", *closes]
        else:
            macro = subject.name("END_ELEMENT")
            edits += [Edit(one.start, one.end, (macro,)) for one in subject.returns]
    inside = subject.inside
    parts = (
        "\n".join(["", f"#if {on}", *opens, "#endif", ""]),
        inside,
        "\n".join(["", f"#if {on}", *closes, "#endif", ""]),
    )
    return [*edits, Edit(inside.start, inside.end, parts)]


def _coordinates(subject: Subject) -> str:
    layers = [layer for change in subject.changes.values() for layer in change.layers]
    lines = list[str]()
    for axis in dict.fromkeys(layer.axis for layer in layers if layer.axis):
        on = " || ".join(dict.fromkeys(layer.on for layer in layers if layer.axis == axis))
        cast = "decltype(__VA_ARGS__)" if subject.backend == "cuda" else "size_t"
        macro = f"{subject.name(f'AT_{axis.upper()}')}(...)"
        lines.append(switched(on, {macro: (f"(({cast}){subject.at(axis)})", "(__VA_ARGS__)")}))
    if subject.backend == "opencl" and subject.returns and any(layer.loops for layer in layers):
        on = " || ".join(dict.fromkeys(layer.on for layer in layers if layer.loops))
        lines.append(switched(on, {subject.name("END_ELEMENT"): ("continue", "return")}))
    return "\n".join(lines)


def _launch(subject: Subject, changes: list[Change]) -> tuple[LaunchGeometry, dict[str, str]]:
    """The launch, and the conditions under which it computes what the plain one does, each with the reason."""
    plain, shares, grids = subject.launch, dict[str, str](), dict[str, str]()
    for change in changes:
        grids |= change.grid
        for axis, share in change.share.items():
            shares[axis] = f"{shares[axis]} * {share}" if shares.get(axis, "1") != "1" else share
    grid, block, exact = list[str](), list[str](), dict[str, str]()
    for axis in AXES:
        block.append(subject.so_far("block").get(axis, subject.extent(axis)))
        if axis not in shares:
            grid.append(grids.get(axis, subject.grid(axis)))
            continue
        total, share = subject.threads(axis), f"({block[-1]}) * {shares[axis]}"
        grid.append(f"ceil_div({total}, {share})")
        if any(one.name == axis and not one.guarded and not one.strided for one in subject.work.axes):
            exact[f"({total}) % ({share}) == 0"] = NO_GUARD
    for name, launch in (change.instead for change in changes if change.instead is not None):
        grid = [f"({launch.grid[at]}) if {name} > 0 else ({old})" for at, old in enumerate(grid)]
        block = [f"({launch.block[at]}) if {name} > 0 else ({old})" for at, old in enumerate(block)]
    shared = " + ".join([plain.shared_bytes, *(change.shared for change in changes if change.shared)])
    return LaunchGeometry(grid=tuple(grid), block=tuple(block), shared_bytes=shared), exact


def kit(backend: BackendName, names: list[str]) -> list[str]:
    """The texts of building blocks and of all that these need, each once."""
    found = dict[str, str]()

    def take(name: str) -> None:
        needs, text = rule_blocks(backend)[name]
        for one in needs:
            take(one)
        found.setdefault(name, text)

    for name in names:
        take(name)
    return list(found.values())
