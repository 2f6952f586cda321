"""The rules that a source must keep before any compiler sees it.

Sources come from models. A compiler is a program that opens files on request and puts their text into its messages, so
everything that names a file is held to an allow-list here, on the text after line splicing and without comments
(C++17, [lex.phases]). The results of compiled code are judged elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tunesmith.kernels.build.python_source import refuse_python
from tunesmith.kernels.build.source import Specialised, kit
from tunesmith.kernels.outcome import Rejected
from tunesmith.kernels.spec.template import BACKENDS, MAX_SOURCE_BYTES, BackendName

_HEADERS = """
cuda_fp16.h cuda_bf16.h cuda_fp8.h cuda_fp6.h cuda_fp4.h mma.h cooperative_groups.h cuda_pipeline.h cuda_runtime.h
cuda_pipeline_primitives.h cuda_awbarrier.h cuda_awbarrier_primitives.h device_launch_parameters.h vector_types.h
vector_functions.h math_constants.h sm_80_rt.h cuComplex.h
"""
HEADERS = frozenset(_HEADERS.split())
"""Headers of CUDA's that a source may include, all of which NVRTC compiles; OpenCL C needs none."""
_CUDA_STD = (
    "algorithm array atomic bit cassert cfloat chrono climits cmath complex concepts cstddef cstdint cstdlib cstring "
    "functional initializer_list iterator limits numeric optional ratio span tuple type_traits utility variant"
)
_C_HEADERS = "assert float limits math stddef stdint stdlib string"
STANDARD = {name: f"cuda/std/{name}" for name in _CUDA_STD.split()}
STANDARD |= {f"{name}.h": f"cuda/std/c{name}" for name in _C_HEADERS.split()}
"""Headers of the host by what device code includes instead of them."""
HEADER_FOLDERS = ("cuda/std/", "cuda/", "cooperative_groups/", "cub/", "nv/")
_PRAGMAS = """
unroll nounroll once OPENCL STDC push_macro pop_macro diag_suppress diag_default diag_push diag_pop
nv_diag_suppress nv_diag_default nv_diag_push nv_diag_pop nv_exec_check_disable nv_abi ivdep message
"""
PRAGMAS = frozenset(_PRAGMAS.split())
PRAGMA_PAIRS = frozenset({("GCC", "unroll"), ("GCC", "ivdep"), ("clang", "loop"), ("clang", "fp")})
_DIRECTIVES = "define undef if ifdef ifndef elif elifdef elifndef else endif error warning"
DIRECTIVES = frozenset(_DIRECTIVES.split())
"""Directives that are accepted as they are; include, pragma and line are looked into."""
FILE_WORDS = frozenset({"__has_include", "__has_include_next", "__has_embed", "include_next"})
ASM_WORDS = frozenset({"asm", "__asm", "__asm__"})
OUTPUT_WORDS = frozenset({"printf", "__pocl_printf", "__cl_printf", "__builtin_printf"})
"""OpenCL C 1.2, section 6.12.13, and the functions behind it in PoCL and clang."""
CLOCK_WORDS = frozenset(
    {
        "__rdtsc",
        "__rdtscp",
        "_rdtsc",
        "__builtin_readcyclecounter",
        "__builtin_readsteadycounter",
        *(f"__builtin_ia32_{name}" for name in ("rdtsc", "rdtscp", "rdpmc", "rdpid")),
        *(f"__builtin_ia32_{name}{bits}_step" for name in ("rdrand", "rdseed") for bits in (16, 32, 64)),
        *(f"__builtin_arm_{name}" for name in ("rsr", "rsr64", "rsrp")),
        *(f"__builtin_amdgcn_s_{name}" for name in ("memtime", "memrealtime")),
        *(f"__nvvm_read_ptx_sreg_{name}" for name in ("clock", "clock64", "globaltimer")),
        *(f"clock_read_{kind}{of}" for kind in ("", "hilo_") for of in ("device", "work_group", "sub_group")),
    }
)
"""Functions by which a kernel can tell one launch from another: clang's built-ins for clocks and the like, and the
functions of cl_khr_kernel_clock. In CUDA the compiled code tells."""
PRAGMA_WORDS = frozenset({"_Pragma", "__pragma"})
"""Operators that could name a file, and that no tokens may be pasted to: a macro of that name would forbid its use."""
PROTECTED = FILE_WORDS | ASM_WORDS | PRAGMA_WORDS
"""Names that a source may neither define nor undefine."""

_HEADER = re.compile(r"[A-Za-z0-9_]+(?:[./-][A-Za-z0-9_]+)*")
_INCLUDE = re.compile(r"include[ \t]*(?:<([^<>\"]+)>|\"([^<>\"]+)\")[ \t]*")
_LINE = re.compile(r'line[ \t]+\d+(?:[ \t]+"[^"/\\]*")?[ \t]*')
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_HIDDEN_INCLUDE = re.compile(r"(?:#|%:)(?:\s|/\*.*?\*/)*(?:include|include_next|import|embed)\b[^\n]*", re.DOTALL)

_TOKEN = re.compile(
    r"(?P<line>//[^\n]*)|(?P<block>/\*.*?\*/)"
    r"|(?P<string>\"(?:[^\"\\\n]|\\.)*\")|(?P<char>'(?:[^'\\\n]|\\.)*')"
    r"|(?P<number>\.?[0-9](?:[eEpP][+-]|'[0-9A-Fa-f]|[A-Za-z0-9_.])*)|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<stray>[\"']|/\*)|(?P<other>[^A-Za-z_$0-9\"'/.]+|[/.])",
    re.DOTALL,
)
"""The named group that matched is the kind of the token. `stray`: a quote or a comment that does not end; `other`:
white space and punctuation, of any length."""
_REPLACED = {"line": "", "block": " "}
"""The text of a comment after it was read."""


def refuse(source: Specialised) -> Rejected | None:
    """Why `source` must not be given to a compiler, or None."""
    size = len(source.source.encode(errors="surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        detail = f"the source has {size} bytes; at most {MAX_SOURCE_BYTES} are accepted."
        return Rejected("source_too_large", "source size", detail)
    return refuse_text(source.source, source.backend)


def refuse_text(source: str, backend: BackendName) -> Rejected | None:
    """`refuse` for a text of accepted size."""
    if BACKENDS[backend].python:
        return refuse_python(source)
    return next(_objections(_splice(source), backend), None)


def without_comments(source: str) -> str:
    """`source` as a compiler reads it: lines joined, no comments."""
    return _code(_splice(source))


def _splice(source: str) -> str:
    """The text with one kind of line end and with continued lines joined."""
    return re.sub(r"\\[ \t\f\v]*\n", "", source.replace("\r\n", "\n").replace("\r", "\n"))


def _code(spliced: str) -> str:
    """The text without comments; a block comment is a space."""
    return "".join(_REPLACED.get(str(token.lastgroup), token.group()) for token in _TOKEN.finditer(spliced))


def _forbidden(rule: str, detail: str) -> Rejected:
    return Rejected("forbidden_source", rule, f"{detail}.")


def _objections(spliced: str, backend: BackendName) -> Iterator[Rejected]:
    if (odd := re.search(r"[\x00-\x08\x0e-\x1f\x7f\ufeff]", spliced)) is not None:
        yield _forbidden("characters", f"the character U+{ord(odd.group()):04X} has no place in source code")
    if "??" in spliced and (trigraph := re.search(r"\?\?[=/'()!<>-]", spliced)) is not None:
        yield _forbidden("trigraphs", f"the trigraph {trigraph.group()} is not accepted; write the character itself")
    yield from _of_literals(spliced)
    code, found = _code(spliced), dict[str, set[str]]()
    for token in _TOKEN.finditer(spliced):
        found.setdefault(str(token.lastgroup), set()).add(token.group())
    names, numbers = found.get("name", set()), found.get("number", set())
    for hidden in _HIDDEN_INCLUDE.finditer(code):
        # Also inside strings: a compiler that splits the text otherwise must find nothing there either.
        yield from _of_include(hidden.group().lstrip("#"), backend)
    forbidden = [(FILE_WORDS, "file tests", "it asks for files of the machine, which a kernel has no need of")]
    if BACKENDS[backend].on_host:
        forbidden += [
            (ASM_WORDS, "inline assembly", "on a CPU it is the host's own machine code"),
            # In CUDA the compiled code tells whether a kernel prints, also in what conditions leave out.
            (OUTPUT_WORDS, "output", "it writes to the output of whatever program launches the kernel"),
            (CLOCK_WORDS, "clocks", "by it a kernel could tell one launch from another"),
        ]
    for words, rule, why in forbidden:
        yield from (_forbidden(rule, f"{name}: {why}") for name in sorted(names & words))
    if "##" in code or "%:%:" in code:
        for word in sorted(PRAGMA_WORDS):
            pieces = "|".join(re.escape(piece) for piece in names | numbers if piece in word)
            if re.fullmatch(f"(?:{pieces}){{2,}}", word):
                yield _forbidden("protected names", f"pasting could make {word} of what stands in the source")
    for string in sorted(found.get("string", ())):
        # In quotes of its own as well: a text may be that of a directive.
        if re.search(r"(?:^|[\"'<])\s*/[A-Za-z0-9_.]", string[1:-1]) or "../" in string:
            yield _forbidden("paths", f"the text {string[:60]} is a path of the machine")
    if re.search(r"\b__pragma\b", code):
        yield _forbidden("pragmas", "__pragma is not accepted; write #pragma")
    for operator in re.finditer(r"\b_Pragma\b([^\n]*)", code):
        operand = re.match(r"\s*\(\s*\"\s*(\w+)[^\"\\]*\"\s*\)", operator.group(1))
        if operand is None or operand.group(1) not in PRAGMAS:
            yield _forbidden("pragmas", f"_Pragma{operator.group(1)[:60]} is not an accepted pragma in quotes")
    lines = [line.strip() for line in code.split("\n")]
    if any(line.startswith("%:") for line in lines):
        yield _forbidden("digraphs", "the digraph %: is not accepted; write #")
    directives = [line[1:].strip() for line in lines if line.startswith("#")]
    pasting = _pasting_macros(directives)
    for directive in directives:
        yield from _of_directive(directive, pasting, backend)


def _of_literals(spliced: str) -> Iterator[Rejected]:
    """Compilers differ in how they read the rest of a line with a quote that does not end. In a branch that is
    skipped this matters only if a comment may begin there."""
    before, line, faults = "", 0, dict[int, str]()
    for token in _TOKEN.finditer(spliced):
        kind, text = str(token.lastgroup), token.group()
        if kind in ("string", "char") and re.fullmatch(r"(?:u8|[uUL])?R", before):
            yield _forbidden("raw strings", "raw string literals are not accepted; write an ordinary one")
        fault = ""
        if kind == "char" and before not in ("", "u8", "u", "U", "L"):
            fault = f"the quote after '{before}' can be read in two ways"
        if kind == "stray":
            number, begun = spliced[: token.start()].count("\n"), spliced[token.start() :].split("\n", 1)[0]
            fault = f"line {number + 1} (after splicing) has a quote or comment that does not end: {begun[:60]}"
        if fault:
            faults.setdefault(-1 if "/*" in spliced[token.start() :].split("\n", 1)[0] else line, fault)
        line += _REPLACED.get(kind, text).count("\n")
        before = text if kind in ("name", "number") else ""
    skipped = _skipped(_code(spliced)) if faults else set()
    yield from (_forbidden("literals", fault) for number, fault in faults.items() if number not in skipped)


def _skipped(code: str) -> set[int]:
    """The numbers of the lines between `#if 0` and the end of that branch."""
    found, depth = set(), 0  # conditionals opened since `#if 0`, that one included
    for number, line in enumerate(code.split("\n")):
        word, rest = (
            (*line.strip().removeprefix("#").split(None, 1), "", "")[:2] if line.strip()[:1] == "#" else ("", "")
        )
        if depth == 0:
            depth = int((word, rest.strip()) == ("if", "0"))
            continue
        depth += word in ("if", "ifdef", "ifndef")
        depth -= word == "endif" or (depth == 1 and word.startswith("el"))
        if depth:
            found.add(number)
    return found


def _of_directive(directive: str, pasting: frozenset[str], backend: BackendName) -> Iterator[Rejected]:
    """For one logical line, as no comment or splice is left."""
    match = _NAME.match(directive)
    word = match.group() if match else ""
    rest = directive[len(word) :]
    match word:
        case "include" | "import" | "include_next" | "embed":
            yield from _of_include(directive, backend)
        case "pragma":
            words = rest.split()
            known = not words or re.split(r"\W", words[0])[0] in PRAGMAS or tuple(words[:2]) in PRAGMA_PAIRS
            if not known:
                yield _forbidden("pragmas", f"#pragma {' '.join(words)[:60]} is not one of the accepted")
        case "line":
            if _LINE.fullmatch(directive) is None:
                yield _forbidden("line directives", f"#{directive[:60]} names a file")
        case "define" | "undef":
            if (named := _NAME.search(rest)) is not None and named.group() in PROTECTED:
                yield _forbidden("protected names", f"#{word} {named.group()} is not accepted")
        case "if" | "elif":
            # A pasted name could be one of `FILE_WORDS`, and only conditions evaluate those.
            if '"' in rest or set(_NAME.findall(rest)) & pasting:
                yield _forbidden("conditions", f"#if{rest[:60]} has a text, or a macro that pastes or quotes tokens")
        case _:
            if word and word not in DIRECTIVES:
                yield _forbidden("directives", f"#{word} is not one of the accepted directives")


def _of_include(directive: str, backend: BackendName) -> Iterator[Rejected]:
    match = _INCLUDE.match(directive)
    rest = directive[match.end() :].strip() if match is not None else ""
    if match is None or (rest and not rest.startswith(("//", "/*", "*/"))):
        yield _forbidden("includes", f"#{directive[:60]} does not name a header literally")
        return
    header = match.group(1) or match.group(2)
    known = header in HEADERS or header in kit() or header.startswith(HEADER_FOLDERS)
    if not BACKENDS[backend].makes_cubins:
        yield _forbidden("includes", f"#include of {header[:60]}: OpenCL C needs no headers")
    elif not known and header.startswith("kit/"):
        yield _forbidden("includes", f"#include of {header[:60]}: the kit has {', '.join(kit())}")
    elif not known or _HEADER.fullmatch(header) is None:
        instead = f"include {STANDARD[header]}" if header in STANDARD else "write out what the kernel needs of it"
        what = f"it is not on the list of accepted headers: leave it out, or {instead}"
        yield _forbidden("includes", f"#include of {header[:60]}: {what}")
    elif header == "cub/cub.cuh" or header.startswith("cub/device/"):
        what = "it does not compile for the device alone: include parts of cub/block/ or cub/warp/ instead"
        yield _forbidden("includes", f"#include of {header[:60]}: {what}, such as cub/block/block_reduce.cuh")


def _pasting_macros(directives: list[str]) -> frozenset[str]:
    """Macros whose replacement pastes or quotes tokens, itself or by way of others."""
    bodies: dict[str, str] = {}
    for directive in directives:
        if (match := re.match(r"define\s+([A-Za-z_$][A-Za-z0-9_$]*)(.*)", directive)) is not None:
            bodies[match.group(1)] = bodies.get(match.group(1), "") + " " + match.group(2)
    found = {name for name, body in bodies.items() if "#" in body or "%:" in body}
    while more := {name for name, body in bodies.items() if found & set(_NAME.findall(body))} - found:
        found |= more
    return frozenset(found)
