"""What a source may contain: the rules a text must keep before any compiler sees it.

Sources come from models. A compiler is a program that opens files on request and puts their text into its messages, so
everything that names a file is held to an allow-list here, on the text after line splicing and without comments
(C++17, [lex.phases]). What the compiled code does is judged elsewhere.
"""

from __future__ import annotations

import re

from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.outcome import Rejected
from tunesmith.kernels.spec.template import BACKENDS, MAX_SOURCE_BYTES, BackendName

_HEADERS = """
cuda_fp16.h cuda_bf16.h cuda_fp8.h cuda_fp6.h cuda_fp4.h mma.h cooperative_groups.h cuda_pipeline.h cuda_runtime.h
cuda_pipeline_primitives.h cuda_awbarrier.h cuda_awbarrier_primitives.h device_launch_parameters.h vector_types.h
vector_functions.h math_constants.h sm_80_rt.h
"""
HEADERS = frozenset(_HEADERS.split())
"""Headers a CUDA source may include, all of which NVRTC compiles; OpenCL C needs none."""
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
nv_diag_suppress nv_diag_default nv_diag_push nv_diag_pop nv_exec_check_disable nv_abi ivdep
"""
PRAGMAS = frozenset(_PRAGMAS.split())
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
"""Functions by which a kernel can tell one launch from another: clang's for clocks and the like, and those of
cl_khr_kernel_clock. In CUDA the compiled code tells."""
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


def refuse(source: Specialised) -> Rejected | None:
    """Why `source` must not be given to a compiler, or None."""
    size = len(source.source.encode(errors="surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        return Rejected(
            "source_too_large", "source size", f"the source has {size} bytes; at most {MAX_SOURCE_BYTES} are accepted."
        )
    return refuse_text(source.source, source.backend)


def refuse_text(source: str, backend: BackendName) -> Rejected | None:
    """`refuse` for a text of accepted size."""
    spliced = _splice(source)
    if (odd := re.search(r"[\x00-\x08\x0e-\x1f\x7f\ufeff]", spliced)) is not None:
        return _forbidden("characters", f"the character U+{ord(odd.group()):04X} has no place in source code")
    if "??" in spliced and (trigraph := re.search(r"\?\?[=/'()!<>-]", spliced)) is not None:
        return _forbidden("trigraphs", f"the trigraph {trigraph.group()} is not accepted; write the character itself")
    lexed = _lex(spliced)
    if isinstance(lexed, Rejected):
        return lexed
    code, strings, names, numbers = lexed
    for hidden in _HIDDEN_INCLUDE.finditer(code):
        # Also inside strings: whoever reads the text otherwise than we do must find nothing there either.
        if (refused := _include(hidden.group().lstrip("#"), backend)) is not None:
            return refused
    if found := sorted(names & FILE_WORDS):
        return _forbidden("file tests", f"{found[0]} asks for files of the machine, which a kernel has no need of")
    in_host = BACKENDS[backend].on_host
    if in_host and (found := sorted(names & ASM_WORDS)):
        return _forbidden("inline assembly", f"{found[0]}: on a CPU it is the host's own machine code")
    if in_host and (found := sorted(names & OUTPUT_WORDS)):
        # In CUDA the compiled code tells whether a kernel prints, also in what conditions leave out.
        return _forbidden("output", f"{found[0]} writes to the output of whatever program launches the kernel")
    if in_host and (found := sorted(names & CLOCK_WORDS)):
        return _forbidden("clocks", f"by {found[0]} a kernel could tell one launch from another")
    if "##" in code or "%:%:" in code:
        for word in sorted(PRAGMA_WORDS):
            if _can_be_pasted(word, names | numbers):
                return _forbidden("protected names", f"pasting could make {word} of what stands in the source")
    for string in strings:
        if (refused := _string(string)) is not None:
            return refused
    return _pragma_operators(code) or _directives(code, backend)


def without_comments(source: str) -> str:
    """`source` as a compiler reads it: lines joined, no comments. What has a quote that does not end is joined only."""
    lexed = _lex(spliced := _splice(source))
    return spliced if isinstance(lexed, Rejected) else lexed[0]


def _splice(source: str) -> str:
    """The text with one kind of line end and with continued lines joined."""
    return re.sub(r"\\[ \t\f\v]*\n", "", source.replace("\r\n", "\n").replace("\r", "\n"))


def _forbidden(rule: str, detail: str) -> Rejected:
    return Rejected("forbidden_source", rule, f"{detail}.")


def _lex(spliced: str) -> tuple[str, list[str], set[str], set[str]] | Rejected:
    """The code without comments (a block comment is a space), its string literals, names and numbers."""
    code, strings, names, numbers = list[str](), list[str](), set[str](), set[str]()
    strays: dict[int, tuple[int, str]] = {}
    before, line = "", 0
    for token in _TOKEN.finditer(spliced):
        kind, text = token.lastgroup, token.group()
        after_word = kind == "char" and before not in ("", "u8", "u", "U", "L")
        if line not in strays and (kind == "stray" or after_word):
            end = spliced.find("\n", token.start())
            strays[line] = token.start(), before if after_word else ""
            # Compilers differ in how they read the rest of such a line, which matters where a comment begins there.
            if "/*" in spliced[token.start() : end if end >= 0 else None]:
                return _stray(spliced, *strays[line])
        if kind in ("string", "char") and re.fullmatch(r"(?:u8|[uUL])?R", before):
            return _forbidden("raw strings", "raw string literals are not accepted; write an ordinary one")
        if kind == "string":
            strings.append(text[1:-1])
        elif kind == "name":
            names.add(text)
        elif kind == "number":
            numbers.add(text)
        code.append("" if kind == "line" else " " if kind == "block" else text)
        line += code[-1].count("\n")
        before = text if kind in ("name", "number") else ""
    joined = "".join(code)
    if strays:
        disabled = _disabled(joined)
        if (first := next((one for number, one in strays.items() if number not in disabled), None)) is not None:
            return _stray(spliced, *first)
    return joined, strings, names, numbers


def _stray(spliced: str, at: int, before: str) -> Rejected:
    """For a quote behind the word `before`, or another quote or a comment that does not end."""
    if before:
        return _forbidden("literals", f"the quote after '{before}' can be read in two ways")
    line = spliced[:at].count("\n") + 1
    return _forbidden("literals", f"line {line} (after splicing) has a quote or comment that does not end")


def _disabled(code: str) -> set[int]:
    """The lines that no compiler reads as code: those between `#if 0` and what ends that."""
    found = set()
    inside = 0  # conditionals that were opened since `#if 0`, that one too
    for number, line in enumerate(code.split("\n")):
        words = re.match(r"\s*#\s*(\w+)\s*(.*)", line)
        word, rest = (words.group(1), words.group(2).strip()) if words is not None else ("", "")
        if not inside:
            inside = int(word == "if" and rest == "0")
            continue
        if word in ("if", "ifdef", "ifndef"):
            inside += 1
        elif word == "endif" or (inside == 1 and word.startswith("el")):
            inside -= 1
        if inside:
            found.add(number)
    return found


def _can_be_pasted(word: str, pieces: set[str]) -> bool:
    """Whether `word` is a row of at least two of `pieces`."""
    reached = [True] + [False] * len(word)
    for end in range(1, len(word) + 1):
        reached[end] = any(
            reached[start] and word[start:end] in pieces for start in range(end) if (start, end) != (0, len(word))
        )
    return reached[-1]


def _string(string: str) -> Rejected | None:
    # In quotes of its own as well: a text may be that of a directive.
    if re.search(r"(?:^|[\"'<])\s*/[A-Za-z0-9_.]", string) or "../" in string:
        return _forbidden("paths", f'the text "{string[:60]}" is a path of the machine')
    return None


def _pragma_operators(code: str) -> Rejected | None:
    if re.search(r"\b__pragma\b", code):
        return _forbidden("pragmas", "__pragma is not accepted; write #pragma")
    for operator in re.finditer(r"\b_Pragma\b([^\n]*)", code):
        operand = re.match(r"\s*\(\s*\"\s*(\w+)[^\"\\]*\"\s*\)", operator.group(1))
        if operand is None or operand.group(1) not in PRAGMAS:
            return _forbidden("pragmas", f"_Pragma{operator.group(1)[:60]} is not an accepted pragma in quotes")
    return None


def _directives(code: str, backend: BackendName) -> Rejected | None:
    """The directives, one logical line each, as no comment or splice is left."""
    lines = [line.strip() for line in code.split("\n")]
    directives = [line[1:].strip() for line in lines if line.startswith("#")]
    if any(line.startswith("%:") for line in lines):
        return _forbidden("digraphs", "the digraph %: is not accepted; write #")
    pasting = _pasting_macros(directives)
    for directive in directives:
        match = _NAME.match(directive)
        word = match.group() if match else ""
        rest = directive[len(word) :]
        refused = None
        if word in ("include", "import", "include_next", "embed"):
            refused = _include(directive, backend)
        elif word == "pragma":
            refused = _pragma(rest.split())
        elif word == "line":
            if _LINE.fullmatch(directive) is None:
                refused = _forbidden("line directives", f"#{directive[:60]} names a file")
        elif word in ("define", "undef"):
            named = _NAME.search(rest)
            if named is not None and named.group() in PROTECTED:
                refused = _forbidden("protected names", f"#{word} {named.group()} is not accepted")
        elif word in ("if", "elif"):
            refused = _condition(rest, pasting)
        elif word and word not in DIRECTIVES:
            refused = _forbidden("directives", f"#{word} is not one of the accepted directives")
        if refused is not None:
            return refused
    return None


def _include(directive: str, backend: BackendName) -> Rejected | None:
    match = _INCLUDE.match(directive)
    rest = directive[match.end() :].strip() if match is not None else ""
    if match is None or (rest and not rest.startswith(("//", "/*", "*/"))):
        return _forbidden("includes", f"#{directive[:60]} does not name a header literally")
    header = match.group(1) or match.group(2)
    known = header in HEADERS or header.startswith(HEADER_FOLDERS)
    if not BACKENDS[backend].makes_cubins or not known or _HEADER.fullmatch(header) is None:
        what = "OpenCL C needs no headers"
        if BACKENDS[backend].makes_cubins:
            instead = f"include {STANDARD[header]}" if header in STANDARD else "write out what the kernel needs of it"
            what = f"it is not on the list of accepted headers: leave it out, or {instead}"
        return _forbidden("includes", f"#include of {header[:60]}: {what}")
    if header == "cub/cub.cuh" or header.startswith("cub/device/"):
        what = "it does not compile for the device alone: include parts of cub/block/ or cub/warp/ instead"
        return _forbidden("includes", f"#include of {header[:60]}: {what}, such as cub/block/block_reduce.cuh")
    return None


def _pragma(words: list[str]) -> Rejected | None:
    if not words:
        return None
    first = re.split(r"\W", words[0])[0]
    if first in PRAGMAS or words[:2] in (["GCC", "unroll"], ["GCC", "ivdep"], ["clang", "loop"], ["clang", "fp"]):
        return None
    return _forbidden("pragmas", f"#pragma {' '.join(words)[:60]} is not one of the accepted")


def _condition(text: str, pasting: frozenset[str]) -> Rejected | None:
    """A pasted name could be one of `FILE_WORDS`, and only conditions evaluate those."""
    if '"' in text:
        return _forbidden("conditions", f"#if{text[:60]} has a text in it")
    if used := sorted(set(_NAME.findall(text)) & pasting):
        return _forbidden("conditions", f"#if{text[:60]} uses {used[0]}, which pastes or quotes tokens")
    return None


def _pasting_macros(directives: list[str]) -> frozenset[str]:
    """Macros whose replacement pastes or quotes tokens, itself or by way of others."""
    bodies: dict[str, str] = {}
    for directive in directives:
        match = re.match(r"define\s+([A-Za-z_$][A-Za-z0-9_$]*)(.*)", directive)
        if match is not None:
            bodies[match.group(1)] = bodies.get(match.group(1), "") + " " + match.group(2)
    found = {name for name, body in bodies.items() if "#" in body or "%:" in body}
    while True:
        more = {name for name, body in bodies.items() if found & set(_NAME.findall(body))} - found
        if not more:
            return frozenset(found)
        found |= more
