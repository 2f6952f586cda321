"""Python modules with Triton kernels: their bindings, the values of these, and the slice that a kernel uses.

Nothing is imported. Values come from the definitions that they need, run with the built-in functions of plain Python, a
stand-in for Triton that knows its configurations and the arithmetic of sizes, and a stand-in for PyTorch that says
"CUDA, compute capability 9.0, an H100". Whatever else they need is unknown, and said.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import re
import symtable
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

from tunesmith.kernels.build.python_source import constexprs_of, heuristics_in, parameters_of
from tunesmith.kernels.reader.parse import SourceError
from tunesmith.kernels.spec.taskfile import read_source
from tunesmith.kernels.spec.template import TRITON_OPTIONS

_PLAIN = ("math", "itertools", "functools", "operator", "collections", "dataclasses", "enum", "typing", "packaging")
_FORBIDDEN = frozenset({"open", "input", "eval", "exec", "compile", "breakpoint", "exit", "quit", "help", "__import__"})


class Unknown(SourceError):
    """A value that does not follow from the definitions in reach."""


class Symbol:
    """A thing of a package that is not imported, or a number or an array of a host, of which only an expression is
    known. known: values of some expressions."""

    def __init__(self, name: str, known: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.name, self.known = name, known

    def made(self, text: str) -> Any:
        return self.known[text] if text in self.known else Symbol(text, self.known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _ANYWHERE[name] if name in _ANYWHERE else self.made(f"{self.name}.{name}")

    def __getitem__(self, at: Any) -> Any:
        return self.made(f"{self.name}[{at!r}]")

    def __call__(self, *given: Any, **named: Any) -> Any:
        if self.name.endswith(".size"):
            return self.made(f"{self.name.removesuffix('size')}shape{''.join(f'[{one!r}]' for one in given)}")
        # Of the first type that tasks are drafted with.
        if self.name.endswith(".element_size"):
            return 4
        texts = [repr(one) if isinstance(one, int | float | str | Symbol) else "..." for one in given]
        return self.made(f"{self.name}({', '.join(texts)})")

    def __repr__(self) -> str:
        return re.sub(r"^torch(?=\.\w+$)", "tl", self.name)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Symbol) and (repr(self) == repr(other) or not (unknown(self) or unknown(other))):
            return repr(self) == repr(other)
        return symbolic("({} == {})")(self, other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def _number(self) -> Any:
        raise Unknown(f"{self.name} is not known")

    __bool__ = __iter__ = __int__ = __float__ = __index__ = _number


def unknown(value: Any) -> bool:
    """Whether a value is known by an expression that is not a constant of Triton, such as a data type."""
    return isinstance(value, Symbol) and not re.fullmatch(r"tl\.\w+", repr(value))


class Config:
    """`triton.Config`: a line of a list."""

    def __init__(
        self, kwargs: Mapping[str, Any], num_warps: int = 4, num_stages: int = 3, num_ctas: int = 1, **more: Any
    ) -> None:
        self.kwargs, self.num_warps, self.num_stages, self.num_ctas = dict(kwargs), num_warps, num_stages, num_ctas
        self.maxnreg, self.pre_hook = more.get("maxnreg"), more.get("pre_hook")


def values_of(config: Any) -> dict[str, Any]:
    """The values of constexprs and options of a line of a list, Triton's own or ours."""
    given = {name: getattr(config, name) for name in TRITON_OPTIONS}
    usual = {"num_ctas": 1, "maxnreg": None}
    return {**config.kwargs, **{name: value for name, value in given.items() if value != usual.get(name, ())}}


def symbolic(form: str, function: Any = None) -> Any:
    """A function whose value is `form`, such as "{} + {}" or the name of a function, where symbols are given."""

    def computed(*given: Any) -> Any:
        symbol = next((one for one in given if isinstance(one, Symbol)), None)
        if symbol is None:
            return function(*given)
        return symbol.made(form.format(*given) if "{" in form else f"{form}({', '.join(map(str, given))})")

    return computed


for _name, _form in {"neg": "(-{})", "ceil": "ceil"}.items():
    setattr(Symbol, f"__{_name}__", symbolic(_form))
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "truediv": "/", "mod": "%"}
for _name, _sign in {**_SIGNS, "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    setattr(Symbol, f"__{_name}__", symbolic(f"({{0}} {_sign} {{1}})"))
    setattr(Symbol, f"__r{_name}__", symbolic(f"({{1}} {_sign} {{0}})"))


_SIZES = {
    **dict.fromkeys(("cdiv", "ceil_div"), symbolic("ceil_div", lambda a, b: -(-a // b))),
    "next_power_of_2": lambda number: 1 << max(int(number) - 1, 0).bit_length(),
}
_KNOWN: dict[str, Any] = {
    "triton.Config": Config,
    "tl.constexpr": lambda value: value,
    "triton.runtime.driver.active.get_current_target()": SimpleNamespace(backend="cuda", arch=90, warp_size=32),
    "torch.version": SimpleNamespace(hip=None, cuda="13.0"),
    "torch.cuda.is_available()": True,
    **{f"torch.cuda.get_device_name({device})": "NVIDIA H100" for device in ("", 0)},
    **{f"torch.cuda.get_device_capability({device})": (9, 0) for device in ("", 0)},
    "os.environ": {},
    "os.getenv": lambda name, other=None: other,
}
_KNOWN["triton.language"] = Symbol("tl", _KNOWN)
_ANYWHERE = {**_SIZES, "triton": Symbol("triton", _KNOWN), "tl": _KNOWN["triton.language"]}
"""The meaning of these names in any package."""
ALIASES = {"tl": "import triton.language as tl", "triton": "import triton"}
"""Names that mean Triton wherever they are imported from, with the plain import."""


def names_in(node: ast.AST) -> list[str]:
    return list(dict.fromkeys(one.id for one in ast.walk(node) if isinstance(one, ast.Name)))


def bound_by(statement: ast.stmt) -> set[str]:
    """The names that a statement of a module binds, at any depth of conditions."""
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import() | ast.ImportFrom():
            return {one.asname or one.name.partition(".")[0] for one in statement.names}
        case ast.If() | ast.Try() | ast.With() | ast.For():
            return {name for one in (*statement.body, *getattr(statement, "orelse", ())) for name in bound_by(one)}
    return {one.id for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


class Module:
    """A Python file. doubts: conditions and constants that could not be evaluated, as clauses."""

    def __init__(self, path: Path, text: str | None = None, loaded: dict[Path, Module] | None = None) -> None:
        self.path, self.text = path, read_source(path, "SOURCE") if text is None else text
        try:
            self.tree = ast.parse(self.text)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            raise SourceError(f"{path}{f', line {line}' if line else ''}: it is not valid Python: {error}.") from error
        self.doubts = list[str]()
        self._loaded = {} if loaded is None else loaded
        self._loaded[path] = self
        allowed = {name: one for name, one in vars(builtins).items() if name not in _FORBIDDEN}
        self._values: dict[str, Any] = {
            "__builtins__": {**allowed, "__import__": self._imported},
            "__name__": path.stem,
        }
        self._tried = set[str]()

    def module(self, name: str | None, level: int) -> Module | None:
        """The module that an import of this file names, where its file lies beside it or in the same package."""
        parts = (name or "").split(".") if name else []
        above = self.path.resolve().parents
        # The modules of a package have its name before theirs: `ops/triton/` is not Triton.
        outside = [folder for folder in above[:8] if not (folder / "__init__.py").is_file()]
        for folder in [above[level - 1]] if level else outside:
            for path in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
                if path.is_file() and (parts or path.name == "__init__.py"):
                    return self._loaded.get(path) or Module(path, None, self._loaded)
        return None

    def imported_module(self, name: str) -> Module | None:
        """The module of the project that `name` means, by an import."""
        for one in self.statements(name):
            if isinstance(one, ast.Import | ast.ImportFrom):
                asked = {at.asname or at.name: at.name for at in one.names}.get(name, "")
                package = f"{getattr(one, 'module', None) or ''}."
                return self.module(f"{package}{asked}".lstrip("."), getattr(one, "level", 0)) if asked else None
        return None

    def origin(self, name: str) -> tuple[Path, str] | None:
        """The file that defines what a name means, and the name that it has there, if it is of the project."""
        for one in self.statements(name)[-1:]:
            if isinstance(one, ast.ImportFrom):
                other, asked = self.module(one.module, one.level), {at.asname or at.name: at.name for at in one.names}
                return other.origin(asked[name]) if other else None
        return self.path.resolve(), name

    def users(self, name: str) -> Iterator[Module]:
        """The other modules of the package, or beside this one, that call a function of this one by its name."""
        folder = self.path.resolve().parent
        packages = [one for one in (folder, *folder.parents[:8]) if (one / "__init__.py").is_file()]
        called = re.compile(rf"\b{name}[\[(]")
        for path in sorted(packages[-1].rglob("*.py") if packages else folder.glob("*.py")):
            if path != self.path.resolve() and called.search(path.read_text(encoding="utf-8", errors="replace")):
                with contextlib.suppress(SourceError):
                    other = self._loaded.get(path) or Module(path, None, self._loaded)
                    if other.origin(name) == (self.path.resolve(), name):
                        yield other

    def _imported(self, name: str, scope: Any = None, local: Any = None, asked: Any = (), level: int = 0) -> Any:
        """The modules that evaluated code of this module may import."""
        root = name.partition(".")[0]
        if not level and root in _PLAIN:
            module = importlib.import_module(name)
            return module if asked else importlib.import_module(root)
        local_one = self.module(name, level)
        if local_one is None:
            found: Any = Symbol(root, _KNOWN)
            for part in name.split(".")[1:] if asked else ():
                found = getattr(found, part)
            return found
        # Names are evaluated when they are asked for (PEP 562).
        found = ModuleType(name or local_one.path.stem)
        found.__dict__["__getattr__"] = lambda given: _ANYWHERE[given] if given in ALIASES else local_one.value(given)
        for given in asked or ():
            # `from . import module`
            bound = [one for one in local_one.statements(given) if getattr(one, "module", given) is not None]
            if not bound and self.module(f"{name}.{given}".strip("."), level):
                setattr(found, given, self._imported(f"{name}.{given}".strip("."), asked=("*",), level=level))
        return found

    def statements(self, name: str) -> list[ast.stmt]:
        """The simple statements that bind `name`, in their order: conditions are decided, of `try` the body counts."""
        return list(self._flat(self.tree.body, name))

    def _flat(self, body: Sequence[ast.stmt], name: str) -> Iterator[ast.stmt]:
        for one in body:
            if name not in bound_by(one):
                continue
            if isinstance(one, ast.If):
                yield from self._flat(one.body if self._holds(one.test) else one.orelse, name)
            elif isinstance(one, ast.Try | ast.With):
                yield from self._flat(one.body, name)
            else:
                yield one

    def _holds(self, test: ast.expr) -> bool:
        try:
            return bool(self.evaluate(test))
        except Unknown as error:
            # Of versions the installed one is new.
            taken = "version" in ast.unparse(test).lower()
            self.doubts.append(f"`{ast.unparse(test)}` in {self.path.name} is taken as {taken} ({error})")
            return taken

    def evaluate(self, node: ast.expr | ast.FunctionDef, given: dict[str, Any] | None = None) -> Any:
        """The value of an expression; raises `Unknown`. given: names that go before those of the module, which gets
        what it uses of these. A function that is defined is bound there."""
        scope = self._values if given is None else given
        for name in ("__builtins__", *names_in(node)):
            if name not in scope:
                self._ensure(name)
                scope |= {name: self._values[name]} if name in self._values else {}
        try:
            return self._run(ast.Expression(node) if isinstance(node, ast.expr) else ast.Module([node], []), scope)
        except Exception as error:  # the user's code may raise anything
            raise Unknown(f"{error}" or type(error).__name__) from error

    def _run(self, tree: ast.Expression | ast.Module, scope: dict[str, Any]) -> Any:
        """The value of an expression, or nothing of statements. Annotations are not evaluated, as in this file."""
        with warnings.catch_warnings(action="ignore"):
            kind = "eval" if isinstance(tree, ast.Expression) else "exec"
            code = compile(ast.fix_missing_locations(tree), str(self.path), kind)
        return eval(code, scope)

    def _ensure(self, name: str) -> None:
        """Runs the definitions of a name, after the definitions that they need."""
        if name in self._tried or name in self._values:
            return
        self._tried.add(name)
        for statement in self.statements(name):
            for needed in names_in(statement):
                self._ensure(needed)
            try:
                self._run(ast.Module([statement], []), self._values)
            except Exception:  # noqa: BLE001 - the user's code may raise anything; who needs the name is told
                self._values.pop(name, None)

    def value(self, name: str) -> Any:
        """The value of a name of the module; raises `Unknown`, also where Python has the name too."""
        self._ensure(name)
        if name not in self._values:
            raise Unknown(f"nothing here tells what {name} is")
        return self._values[name]

    def lines(self, node: ast.stmt) -> str:
        """A statement as its author wrote it, without decorators."""
        return textwrap.dedent("\n".join(self.text.splitlines()[node.lineno - 1 : node.end_lineno]))


def is_jit(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).partition("(")[0] in ("triton.jit", "jit")


def called_name(node: ast.AST) -> str:
    """The last part of the name of the function that is called."""
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def defaults_of(given: ast.arguments) -> dict[str, ast.expr]:
    """The defaults of a function's arguments by name."""
    names = [one.arg for one in (*given.posonlyargs, *given.args)]
    found = dict(zip(names[::-1], given.defaults[::-1], strict=False))
    return found | {one.arg: value for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value}


@dataclass(slots=True)
class Kernel:
    """A kernel in its module. decorators: of the function, or calls that wrap it, outermost first."""

    module: Module
    node: ast.FunctionDef
    decorators: list[ast.expr]

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def parameters(self) -> list[str]:
        return [one.arg for one in parameters_of(self.node)]

    @property
    def constexprs(self) -> list[str]:
        return constexprs_of(self.node)

    @property
    def heuristics(self) -> dict[str, str]:
        """The lambdas of `triton.heuristics`, as text. Raises `SourceError` where it is not a plain table."""
        decorators = list[ast.expr]()
        for one in self.decorators:
            table = one.args[0] if isinstance(one, ast.Call) and one.args else None
            bound = self.module.statements(table.id) if isinstance(table, ast.Name) else []
            table = bound[-1].value if bound and isinstance(bound[-1], ast.Assign) else table
            if isinstance(table, ast.Call) and called_name(table) == "dict" and not table.args:
                words = [(ast.Constant(word.arg), word.value) for word in table.keywords]
                table = ast.Dict([name for name, _ in words], [value for _, value in words])
            decorators.append(ast.Call(one.func, [table], []) if isinstance(one, ast.Call) and table else one)
        if (found := heuristics_in(decorators)) is None:
            raise SourceError(f"{self.module.path}: write the heuristics of {self.name} as a table, {{'NAME': ...}}.")
        return {name: ast.unparse(self._as_lambda(value)) for name, value in found.items()}

    def _as_lambda(self, value: ast.expr) -> ast.expr:
        bound = self.module.statements(value.id) if isinstance(value, ast.Name) else []
        match bound:
            case [ast.FunctionDef(args=given, body=[ast.Return(ast.expr() as result)])]:
                return ast.Lambda(given, result)
        return value

    @property
    def configs(self) -> Any:
        """The value of the list of `triton.autotune`, or of a decorator like it; raises `Unknown`."""
        for tuner in (one for one in self.decorators if isinstance(one, ast.Call)):
            words = {word.arg: word.value for word in tuner.keywords}
            node = words.get("configs") or ([*tuner.args, None][0] if "autotune" in called_name(tuner) else None)
            if node is None:
                continue
            # What a module binds below the kernel, such as the configurations of a benchmark, the tuner does not see.
            earlier = Module(self.module.path, self.module.text)
            earlier.tree.body = [one for one in earlier.tree.body if one.lineno < tuner.lineno]
            try:
                return earlier.evaluate(node)
            finally:
                self.module.doubts += earlier.doubts
        return []


def kernels_of(module: Module) -> list[Kernel]:
    """The functions of a module that are compiled by Triton, kernels and their helpers."""
    found = dict[str, Kernel]()
    for name in dict.fromkeys(name for one in module.tree.body for name in sorted(bound_by(one))):
        wraps, node = list[ast.expr](), None
        for one in module.statements(name):
            if isinstance(one, ast.FunctionDef):
                node, wraps = one, [*one.decorator_list]
            elif isinstance(one, ast.Assign) and isinstance(call := one.value, ast.Call) and name in names_in(call):
                # NAME = triton.jit(NAME), NAME = triton.heuristics({...})(NAME)
                wraps.insert(0, call.func)
        if node and any(map(is_jit, wraps)):
            found[name] = Kernel(module, node, wraps)
    return list(found.values())


def find_kernel(module: Module, entry: str | None, option: str = "--entry") -> Kernel:
    """The kernel `entry`, or the only one: a function that no other one calls. Raises `SourceError`."""
    found = {one.name: one for one in kernels_of(module)}
    called = {name for one in found.values() for name in names_in(ast.Module(one.node.body, [])) if name in found}
    returns = ((name, at) for name, one in found.items() for at in ast.walk(one.node) if isinstance(at, ast.Return))
    results = {name for name, at in returns if at.value is not None and ast.unparse(at.value) != "None"}
    outer = [name for name in found if name not in called | results] or [name for name in found if name not in results]
    functions = [one for one in ast.walk(module.tree) if isinstance(one, ast.FunctionDef)]
    inner = [one.name for one in functions if any(map(is_jit, one.decorator_list)) and one.name not in found]
    if entry in inner or (inner and not outer):
        why = "is defined inside of another function or class, whose variables it may use: move it out of that"
        raise SourceError(f"{module.path}: {entry or inner[0]} {why}.")
    if not outer:
        raise SourceError(f"{module.path}: there is no kernel, a function decorated with @triton.jit without a result.")
    if entry is None and len(outer) > 1:
        raise SourceError(
            f"{module.path}: there are {len(outer)} kernels: choose one of {', '.join(outer)}, as "
            f"{module.path.name}:{outer[0]} or with {option}."
        )
    name = entry or outer[0]
    if name not in found or name in results:
        why = f"{name} returns a value, as no kernel does" if name in found else f"there is no kernel '{name}'"
        raise SourceError(f"{module.path}: {why}; choose {option} from {', '.join(outer)}.")
    arguments = found[name].node.args
    if rest := arguments.vararg or arguments.kwarg:
        raise SourceError(f"{module.path}: {name} takes any arguments, as `{rest.arg}`: give each of them a name.")
    return found[name]


@dataclass(slots=True)
class Slice:
    """The definitions that a kernel uses. functions: by name, the kernel among them; doubts: clauses on what is not
    known for sure."""

    imports: dict[str, None] = field(default_factory=dict)
    constants: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    _meanings: dict[str, object] = field(default_factory=dict)
    _aliases: set[str] = field(default_factory=set)

    def text(self, fixed: Mapping[str, Any] | None = None) -> str:
        """A source: imports, constants, `FIXED`, functions."""
        bound = [f"FIXED = {{{', '.join(f'{name!r}: {value!r}' for name, value in fixed.items())}}}"] if fixed else []
        head = "\n".join([*self.imports, *(["", *self.constants, *bound] if self.constants or bound else [])])
        return "\n\n\n".join([head, *self.texts]) + "\n"

    def collect(self, module: Module, name: str) -> None:
        """Adds what `name` means in `module`, after what that needs."""
        found = module.statements(name)
        if not found and hasattr(builtins, name):
            return
        one = found[-1] if found else None
        if isinstance(one, ast.Import | ast.ImportFrom):
            self._import(module, one, name)
        elif (
            one is None
            or not isinstance(one, ast.FunctionDef | ast.Assign | ast.AnnAssign)
            or not self._new(name, module.path)
        ):
            self.doubts += [f"{name} is not defined in {module.path.name}"] if one is None else []
        elif isinstance(one, ast.FunctionDef):
            self._function(Kernel(module, one, one.decorator_list), {})
        elif one.value is not None:
            self._constant(module, one, name)

    def _new(self, name: str, meaning: object) -> bool:
        """Whether a name is new. Raises `SourceError` where it means something else already."""
        is_new = name not in self._meanings
        if (known := self._meanings.setdefault(name, meaning)) != meaning:
            raise SourceError(f"{name} has two meanings, in {known} and in {meaning}; rename one of them.")
        return is_new

    def _import(self, module: Module, statement: ast.Import | ast.ImportFrom, name: str) -> None:
        one = next(at for at in statement.names if (at.asname or at.name.partition(".")[0]) == name)
        source = statement.module if isinstance(statement, ast.ImportFrom) else None
        level = statement.level if isinstance(statement, ast.ImportFrom) else 0
        if level == 0 and (source or one.name).partition(".")[0] in ("triton", "math"):
            plain = ast.ImportFrom(source, [one], 0) if isinstance(statement, ast.ImportFrom) else ast.Import([one])
            line = ALIASES.get(name) or ast.unparse(plain)
        elif name in ALIASES:
            line = ALIASES[name]
        elif isinstance(statement, ast.Import) or (other := module.module(source, level)) is None:
            self.doubts.append(f"{name} comes from {source or one.name}, which is not beside {module.path.name}")
            return
        else:
            self.collect(other, one.name)
            if one.name != name and self._new(name, f"{other.path}:{one.name}"):
                self._name(name, {one.name}, f"{name} = {one.name}")
            return
        self._new(name, line)
        self.imports[line] = None

    def _name(self, name: str, needed: set[str], text: str) -> None:
        """Adds the assignment of a name: among the constants, or behind the function of which it is another name."""
        of_function = bool(needed & (self.functions.keys() | self._aliases))
        self._aliases |= {name} if of_function else set()
        (self.texts if of_function else self.constants).append(text)

    def _function(self, kernel: Kernel, heuristics: Mapping[str, str]) -> None:
        node, module = kernel.node, kernel.module
        self.functions[node.name] = node
        jit = next((one for one in kernel.decorators if is_jit(one)), None)
        if jit is None:
            why = "which the kernel or its heuristics use, is not decorated with @triton.jit: write out what it does"
            raise SourceError(f"{module.path}: {node.name}, {why}.")
        lines = [f"    {name!r}: {value}," for name, value in heuristics.items()]
        marks = ["@triton.heuristics({", *lines, "})"] if heuristics else []
        if isinstance(jit, ast.Call):
            # What profilers show of a launch is code of the host.
            kept = [word for word in jit.keywords if word.arg not in ("launch_metadata", "repr")]
            jit = ast.Call(jit.func, jit.args, kept) if kept or jit.args else jit.func
        text = "\n".join([*marks, f"@{ast.unparse(jit)}", module.lines(node)])
        moved = set[str]()
        for one in (each for part in node.body for each in ast.walk(part) if isinstance(each, ast.Attribute)):
            # A name of a module of the project becomes a name of the source.
            if isinstance(one.value, ast.Name) and (other := module.imported_module(one.value.id)):
                self.collect(other, one.attr)
                moved.add(one.attr)
                text = re.sub(rf"\b{one.value.id}\.{one.attr}\b", one.attr, text)
        for name in (one for one in _free_names(text) if one not in moved):
            self.collect(module, name)
        self.texts.append(text)

    def _constant(self, module: Module, statement: ast.Assign | ast.AnnAssign, name: str) -> None:
        value = statement.value
        assert value is not None
        calls = [one for one in ast.walk(value) if isinstance(one, ast.Call)]
        needed = names_in(value)
        plain = all(called_name(one) in ("constexpr", "cdiv", "next_power_of_2", "float") for one in calls)
        if plain and all(module.statements(one) for one in needed if not hasattr(builtins, one)):
            for one in (*needed, *(names_in(statement.annotation) if isinstance(statement, ast.AnnAssign) else ())):
                self.collect(module, one)
            self._name(name, {*needed}, module.lines(statement))
            return
        try:
            known = module.value(name)
            if not isinstance(known, int | float | str | tuple | list | dict | None):
                raise Unknown(f"it is {known!r}")
        except Unknown as error:
            self.doubts.append(f"the constant {name} cannot be told ({error})")
            known = None
        self.imports[ALIASES["tl"]] = None
        self.constants.append(f"{name} = tl.constexpr({known!r})")

    def kernel(self, kernel: Kernel, heuristics: Mapping[str, str]) -> None:
        """Adds the kernel itself."""
        self.imports[ALIASES["triton"]] = None
        self._new(kernel.name, kernel.module.path)
        self._function(kernel, heuristics)


def _free_names(text: str) -> list[str]:
    """The names of its module that a source uses."""
    tables, found = [symtable.symtable(text, "source", "exec")], dict[str, None]()
    for table in tables:
        tables += table.get_children()
        found |= {one.get_name(): None for one in table.get_symbols() if one.is_global() and one.is_referenced()}
    return list(found)
