"""Which kernels and which other ops a public op calls, read from the sources.

An op's function is followed through the helpers that it calls and the tables that it names, to dispatch<cpu::f, cuda::f>. It is not
followed into another public op, nor into the tape. What stands inside Tape::record(...) is backward.
"""
import dataclasses
import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
FUNCTION = re.compile(r"([\w:]+)\s*\(")
# An array of rows, which may hold functions; a name of one.
TABLE = re.compile(r"\bconstexpr\s+\w+\s+(k[A-Z]\w*)\[\]\s*=$")
TABLE_NAME = re.compile(r"\bk[A-Z]\w*\b")
CLASS = re.compile(r"\b(?:struct|class)\s+(\w+)(?:\s+final)?\s*(?::[^:(][^(]*)?$")
CALL = re.compile(r"(?<![\w:.>])(?P<scope>(?:\w+::)*)(?P<name>\w+)(?:<[^<>;()]*>)?\(")
MEMBER = re.compile(r"(?:\.|->)(\w+)\(([^()]*)")
DISPATCH = re.compile(r"\bdispatch<cpu::(\w+),\s*cuda::(\w+)>")
# t.to(a device), not t.to(a dtype).
DEVICE = re.compile(r"[dD]evice|kCpu")
# The CPU loop is in the place where the GPU kernel is named.
GPU_ONLY = re.compile(r"\b\w+<cuda::(\w+)>\(")
INCLUDE = re.compile(r'#include "weft/((?:autograd|core)/\w+\.h)"')


@dataclasses.dataclass
class Definition:
    """A function or a class: where it stands and what it consists of."""
    name: str       # "Tensor::fill_" for a member
    scope: str      # its namespaces, "" for an anonymous one
    hidden: bool    # in an anonymous namespace
    is_class: bool
    body: str       # "" for a class: its members have their own
    path: pathlib.Path


def without_comments_and_text(source):
    """Blanks comments and string contents; line breaks stay."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    return re.sub(pattern, lambda m: '""' if m[0][0] == '"' else "\n" * m[0].count("\n"), source,
                  flags=re.S)


def closing(text, start):
    """The position after the bracket that closes the one at `start`."""
    depth = 0
    for m in re.compile(r"[{}()]").finditer(text, start):
        depth += 1 if m[0] in "{(" else -1
        if depth == 0:
            return m.end()
    raise ValueError(f"a bracket is not closed: {text[start:start + 40]!r}")


def next_brace(text, at):
    """The next { that is not inside parentheses, or -1."""
    depth = 0
    for m in re.compile(r"[{()]").finditer(text, at):
        if m[0] == "{" and depth == 0:
            return m.start()
        depth += {"(": 1, ")": -1, "{": 0}[m[0]]
    return -1


def read_scope(text, path, scopes, owner, found):
    """Definitions of one namespace or class, and of those inside it."""
    at = 0
    while (brace := next_brace(text, at)) >= 0:
        head = re.split(r";|\b(?:public|private|protected):", text[at:brace])[-1].strip()
        head = re.sub(r"^template\s*<[^{}]*?>\s*(?=[\w:\[])", "", head)
        end = closing(text, brace)
        inside = text[brace + 1:end - 1]
        namespace = re.search(r"\bnamespace(?:\s+([\w:]+))?$", head)
        kind = CLASS.search(head)
        function = FUNCTION.search(head)
        table = TABLE.search(head)
        place = dict(scope="::".join(filter(None, scopes)), hidden="" in scopes, path=path)
        if namespace:
            read_scope(inside, path, [*scopes, namespace[1] or ""], owner, found)
        elif kind:
            found.append(Definition(kind[1], is_class=True, body="", **place))
            read_scope(inside, path, scopes, f"{kind[1]}::", found)
        elif table:
            found.append(Definition(table[1], is_class=False, body=inside, **place))
        elif function and not head.endswith("=") and "=" not in head[:function.start()]:
            name = function[1]
            if name.startswith("detail::"):
                name = name[len("detail::"):]
                place["scope"] += "::detail"
            found.append(Definition(owner + name, is_class=False, body=head[function.end():] + inside,
                                    **place))
        at = end
    return found


@functools.cache
def definitions(path):
    code = without_comments_and_text(path.read_text())
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", code, flags=re.M)
    return read_scope(code, path, [], "", [])


@functools.cache
def headers_of(path):
    """The headers that a file includes, directly or not."""
    found = set()
    for name in INCLUDE.findall(path.read_text()):
        header = ROOT / name
        if header not in found and header.exists():
            found |= {header} | headers_of(header)
    return frozenset(found)


# Files of the tape itself: their functions run or create ops but are not ops.
TAPE = ({"gradcheck", "recompute", "function", "discard", "save_watch"} | {p.stem for p in ROOT.glob("autograd/tape*")}
        | {h.stem for h in headers_of(ROOT / "autograd/tape.h") if h.parent.name == "autograd"})
# Called only by messages.
PRINT = {"print"}


@dataclasses.dataclass
class Calls:
    """What an op calls in one direction."""
    kernels: dict = dataclasses.field(default_factory=dict)  # name: the file of its CPU loop, or None
    ops: dict = dataclasses.field(default_factory=dict)      # names, in order
    makes_view: bool = False


class OpGraph:
    def __init__(self, ops):
        self.ops = set(ops)
        self.files = [p for p in sorted([*ROOT.glob("autograd/*"), *ROOT.glob("core/*.*")])
                      if p.suffix in (".h", ".cpp") and p.stem not in TAPE | PRINT]
        self.by_name = {}
        for path in self.files:
            for d in definitions(path):
                self.by_name.setdefault(d.name, []).append(d)

    def roots(self, op):
        """The definitions of a public op, overloads together."""
        found = [d for d in self.by_name.get(op, []) if d.scope == "weft" and not d.is_class
                 and not d.hidden and d.path.parent.name == "autograd"]
        if not found:
            raise ValueError(f"{op} is declared in autograd/, and no file there defines it")
        return found

    def visible(self, name, path, scope):
        """What `name` may be in a file, something of its own first; nothing where it is a public op."""
        known = [d for d in self.by_name.get(name, []) if d.scope.endswith(scope.strip(":"))]
        own = [d for d in known if d.path == path]
        hidden = [d for d in own if d.hidden]
        if hidden or (name in self.ops and "detail" not in scope):
            return hidden
        included = [d for d in known if d.path in headers_of(path)]
        return own or included or [d for d in known if not d.hidden and not d.is_class]

    def called(self, text, path, owner=""):
        """(ops, definitions) that some code mentions; `owner`: the class whose member it is."""
        ops, found = [], []
        for m in CALL.finditer(text):
            name, scope = m["name"], m["scope"]
            if scope == "Tensor::":
                found += self.by_name.get(f"Tensor::{name}", [])
            elif scope in ("", "weft::", "detail::"):
                members = self.by_name.get(owner + name, []) if owner and not scope else []
                seen = members or self.visible(name, path, scope.replace("weft::", ""))
                found += [d for d in seen if not d.is_class]
                if not seen and name in self.ops:
                    ops.append(name)
        for name in TABLE_NAME.findall(text):
            found += self.visible(name, path, "")
        classes = self.classes_near(path)
        for name, argument in MEMBER.findall(text):
            if name == "to":
                ops.append("to_device" if DEVICE.search(argument) else "cast")
            else:
                found += [d for c in ["Tensor", *classes] for d in self.by_name.get(f"{c}::{name}", [])]
        words = set(re.findall(r"\b[A-Z]\w+\b", text))
        found += [d for c in classes if c in words for d in self.by_name.get(f"{c}::{c}", [])]
        return ops, found

    def classes_near(self, path):
        """The classes with code of an op: of the file itself, or of headers of autograd/."""
        files = {path} | {h for h in headers_of(path) if h.parent.name == "autograd"}
        return sorted({d.name for f in files if f in self.files for d in definitions(f)
                       if d.is_class and d.name != "Tensor"})

    def is_view(self, op):
        """Is the result the operand's memory, in another shape?"""
        forward, _, _ = self.calls(op)
        parts = forward.ops and all(self.is_view(o) for o in forward.ops)
        return not forward.kernels and bool(forward.makes_view or parts)

    @functools.cache
    def calls(self, op):
        """(forward, backward, the file that records, or None). Backward is without what is forward too."""
        forward, backward = Calls(), Calls()
        records, seen = [], set()
        todo = [(d, False) for d in self.roots(op)]
        while todo:
            d, is_backward = todo.pop(0)
            if (id(d), is_backward) in seen:
                continue
            seen.add((id(d), is_backward))
            parts = [(d.body, is_backward)]
            if not is_backward:
                rest, recorded = split_recorded(d.body)
                parts = [(rest, False), (recorded, True)]
                records += [d.path] if recorded else []
            for text, back in parts:
                into = backward if back else forward
                for cpu, cuda in DISPATCH.findall(text):
                    if cpu != cuda:
                        raise ValueError(f"{d.path}: dispatch of cpu::{cpu} with cuda::{cuda}")
                    into.kernels[cpu] = None
                for kernel in GPU_ONLY.findall(text):
                    into.kernels[kernel] = d.path
                into.makes_view |= ".alias(" in text
                ops, found = self.called(text, d.path, d.name[:d.name.rfind(":") + 1])
                into.ops.update(dict.fromkeys(o for o in ops if o != op))
                todo += [(f, back) for f in found]
        backward.kernels = {k: v for k, v in backward.kernels.items() if k not in forward.kernels}
        backward.ops = {o: None for o in backward.ops if o not in forward.ops}
        return forward, backward, next(iter(records), None)


def split_recorded(body):
    """(the rest, what stands in Tape::record(...))"""
    rest, recorded, at = "", "", 0
    for m in re.finditer(r"\bTape::record\(", body):
        if m.start() < at:
            continue
        end = closing(body, m.end() - 1)
        rest += body[at:m.start()]
        recorded += body[m.end():end]
        at = end
    return rest + body[at:], recorded


def kernel_file(namespace, name):
    """The one file that defines a kernel."""
    places = {"cpu": ["core/cpu/*.cpp"], "cuda": ["cuda/*.cu", "cuda/*.cpp"]}[namespace]
    found = {d.path for pattern in places for path in ROOT.glob(pattern) for d in definitions(path)
             if d.name == name and d.scope == f"weft::{namespace}" and not d.hidden}
    if len(found) != 1:
        raise ValueError(f"{namespace}::{name} is defined in {len(found)} files of {places[0]}, not in one")
    return found.pop()
