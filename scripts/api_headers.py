#!/usr/bin/env python3
"""Converts the public headers to the form that Doxygen (docs/Doxyfile) expects.

usage: scripts/api_headers.py FOLDER     writes the copies to FOLDER, under the same paths

What the headers write                what Doxygen reads
  /// Shapes   x (..., C) -> ...        @par Shapes
  /// Throws   Error on ...              @throws Error on ...
  /// Source: Ba et al. 2016             @par Source
  ///   Tape tape;                       @code ... @endcode, for lines that are indented
one comment over several functions     the same comment over each of them
  // Gradients.     (in a class)         a group of members with that title
  Tensor bias;  // (out), or null      ///< (out), or null
// About the header.                   the description of its topic, if it comes first

Each header is a topic: all of its functions are described on one page."""
import pathlib
import re
import sys
import textwrap

from check_includes import is_public_header
from size import git

ROOT = pathlib.Path(__file__).resolve().parent.parent

FIELD = re.compile(r"(Shapes|Dtypes|Device|Saves|Throws|Source|Returns|fn)\s{2,}(\S.*)|"
                   r"(Source): (.*)|(Throws) (Error\b.*)")
SENTENCE_THROWS = re.compile(r"(?<=[.:]) Throws Error\b")
DOC = re.compile(r"\s*///(?!<)")
CONSTRUCTOR = re.compile(r"\s*(explicit )?[A-Z]\w*\(")
NAMESPACE = re.compile(r"namespace (weft[\w:]*) \{$")
NAME = re.compile(r"([\w:~]+|operator\S+)\s*\(")


def escaped(text):
    """Escapes everything that Doxygen would read as a command, a tag or a link, except in `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([\\@#<%])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def field(match):
    name, text = [group for group in match.groups() if group is not None]
    if name == "Throws" and text.startswith("Error"):
        return [f"@throws Error {escaped(text[5:].strip())}"]
    if name == "Returns":
        return [f"@returns {escaped(text)}"]
    return [f"@par {name}", escaped(text)]


def converted(lines):
    """The lines of one doc comment, without their slashes."""
    out, code, in_field = [], [], False

    def close_code():
        if code:
            kind = ".cpp" if any(";" in line for line in code) else ".unparsed"
            out.extend(["", f"@code{{{kind}}}", *textwrap.dedent("\n".join(code)).split("\n"),
                        "@endcode", ""])
            code.clear()

    for line in lines:
        match = FIELD.match(line)
        if match:
            close_code()
            out.extend(field(match))
            in_field = True
        elif not line:
            close_code()
            out.append("")
            in_field = False
        elif line.startswith("  ") and not in_field:
            code.append(line)
        else:
            close_code()
            sentences = SENTENCE_THROWS.split(line.strip())
            out.append(escaped(sentences[0]))
            for text in sentences[1:]:
                out.append(f"@throws Error {escaped(text.strip())}")
    close_code()
    return with_brief(out)


def with_brief(lines):
    """The first sentence, or the first paragraph without a full stop, as the brief description."""
    end = next((i for i, line in enumerate(lines) if not line or line.startswith("@")), len(lines))
    if end == 0:
        return lines
    brief, *rest = re.split(r"(?<=[^.]\.) ", " ".join(lines[:end]), maxsplit=1)
    return [f"@brief {brief}", "", *rest, *lines[end:]]


def commented(lines, indent=""):
    return [f"{indent}/// {line}".rstrip() for line in lines]


def function_name(declaration):
    match = NAME.search(declaration)
    return match[1] if match else None


def is_function(line):
    """Whether a function declaration begins here."""
    return bool(NAME.search(line)) and not re.match(
        r"\s*(struct|class|enum|using|namespace|#|//|\}|return|template|inline constexpr|extern)", line)


def end_of_declaration(lines, i):
    """The line after a declaration that ends with ';', or None for a definition or anything else."""
    while i < len(lines) and lines[i].strip():
        text = re.sub(r"///<.*", "", lines[i]).rstrip()
        if text.endswith(";"):
            return i + 1
        if text.endswith(("{", "}")):
            return None
        i += 1
    return None


def with_functions(comment, lines, i):
    """The comment with the functions that it documents, and the line after them."""
    indent = re.match(r"\s*", lines[i])[0] if i < len(lines) else ""
    out, first = list(comment), None
    while i < len(lines) and lines[i].strip() and is_function(lines[i]):
        end = end_of_declaration(lines, i)
        name = function_name(lines[i])
        if end is None:
            break
        if first is not None:
            # In a class only overloads share a comment; elsewhere all functions up to the next gap
            # share it.
            if indent and (name != first or CONSTRUCTOR.match(lines[i])):
                break
            out += comment
        out += lines[i:end]
        first, i = name, end
    return out, i


def titled(lines):
    """A // comment as the title of a member group: its first sentence."""
    text = " ".join(line.strip().removeprefix("//").strip() for line in lines)
    title, _, rest = text.partition(". ")
    return escaped(re.sub(r" \([^()]*\)$", "", title.rstrip(".:"))), escaped(rest)


def member(line, previous, in_class):
    """A line with a trailing comment of a member, or its second line."""
    goes_on = not previous.rstrip().endswith((";", "{", "}"))
    if in_class and (re.match(r"  \S", line) or goes_on):
        line = re.sub(r"^( .*;) +// (.*)", r"\1  ///< \2", line)
    if "///<" in previous:
        line = re.sub(r"^(\s{6,})// (.*)", r"\1///< \2", line)
    code, mark, comment = line.partition("///<")
    return code + mark + escaped(comment)


class Header:
    """The state of converting one header: input, output and open groups."""

    def __init__(self, path, lines):
        self.path, self.lines, self.out = path, lines, []
        self.topic = str(path).removesuffix(".h").replace("/", "_")
        self.in_class = self.in_group = self.in_topic = False
        self.description = []

    def end_of(self, i, pattern):
        """The first line at or after i that does not match the pattern."""
        while i < len(self.lines) and re.match(pattern, self.lines[i]):
            i += 1
        return i

    def open_topic(self):
        topic = [f"@addtogroup {self.topic} {self.path}"]
        topic.append("@ingroup " + ("_".join(self.path.parts[:-1]) or "weft"))
        self.out += ["", *commented(topic + self.description), "/// @{", ""]
        self.in_topic = True

    def close_group(self):
        if self.in_group:
            self.out.append("  /// @}")
        self.in_group = False

    def open_group(self, comment):
        self.close_group()
        title, rest = titled(comment)
        self.out += commented([f"@name {title}", rest], "  ") + ["  /// @{"]
        self.in_group = True

    def doc_comment(self, i):
        end = self.end_of(i, DOC)
        texts = [re.sub(r"^\s*/// ?", "", line) for line in self.lines[i:end]]
        if end < len(self.lines) and NAMESPACE.match(self.lines[end]):
            self.description = converted(texts)
            return end
        indent = re.match(r"\s*", self.lines[i])[0]
        block, end = with_functions(commented(converted(texts), indent), self.lines, end)
        self.out += block
        return end

    def plain_comment(self, i):
        """Converts a // comment; returns the line after it, or None if Doxygen does not need it."""
        end = self.end_of(i, "  //(?!/)")
        before = self.lines[i - 1].strip()
        if before in ("", "public:") and end < len(self.lines) and self.lines[end].strip():
            self.open_group(self.lines[i:end])
            return end
        return None

    def first_comment(self, i):
        """The comment after the line that opens a namespace: the description of the header."""
        while i < len(self.lines) and not self.lines[i].strip():
            i += 1
        end = self.end_of(i, "//(?!/)")
        if end == i or self.lines[end].strip():
            return None
        self.description = converted([line[2:].removeprefix(" ") for line in self.lines[i:end]])
        return end

    def namespace(self, i):
        """The line that opens a namespace, and everything up to the first declaration."""
        self.out.append(self.lines[i])
        after = self.first_comment(i + 1)
        gap = self.lines.index("", i) if "" in self.lines[i:] else len(self.lines)
        block = "".join(self.lines[i:gap])
        if block.count("{") > block.count("}"):  # otherwise it contains forward declarations only
            self.open_topic()
        return after or i + 1

    def line(self, i):
        text = self.lines[i]
        if NAMESPACE.match(text):
            return self.namespace(i)
        if re.match(r"( (private|protected|public):|\};)", text):
            self.close_group()
        if text.startswith("}  // namespace weft") and self.in_topic:
            self.out += ["", "/// @}"]
            self.in_topic = False
        if re.match(r"(struct|class) .*\{$|\};", text):
            self.in_class = text != "};"
        self.out.append(member(text, self.lines[i - 1] if i else "", self.in_class))
        return i + 1

    def filtered(self):
        i = 0
        while i < len(self.lines):
            if DOC.match(self.lines[i]):
                i = self.doc_comment(i)
                continue
            is_title = self.in_class and self.lines[i].startswith("  // ")
            after = self.plain_comment(i) if is_title else None
            i = self.line(i) if after is None else after
        return "\n".join(self.out) + "\n"


def main():
    target = pathlib.Path(sys.argv[1])
    folders = set()
    names = git("ls-files", "--cached", "--others", "--exclude-standard", "*.h", text=True).split()
    for path in map(pathlib.PurePath, sorted(set(names))):
        if is_public_header(path) and (ROOT / path).is_file():
            text = Header(path, (ROOT / path).read_text().splitlines()).filtered()
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_text(text)
            folders.add("/".join(path.parts[:-1]) or "weft")
    # Topics of folders; docs/api.dox describes the topics that it lists.
    topics = [f"/// @addtogroup {folder.replace('/', '_')} {folder}\n" for folder in sorted(folders)]
    (target / "folders.dox").write_text("\n".join(topics))


if __name__ == "__main__":
    main()
