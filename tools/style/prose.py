"""Rules about prose: sentences in comments and messages, and the shape of Markdown.

A sentence that opens with a relative clause or a genitive has no subject, so the reader must guess
one. Comments, docstrings, help texts and messages may open so only where they ask a question.
"""
import ast
import io
import re
import tokenize

from house import (CODE, FOLDER_README_WORDS_MAX, MARKDOWN_COLUMNS_MAX, ROOT_README_LINES_MAX)
from source import LITERALS, language, line_of

REMEDY = "begin with the subject: 'A rank that ...', 'The memory of ...', 'Returns ...'"
SLASHES = CODE + (".c", ".proto", ".js", ".css")
HASHES = (".cmake", ".txt", ".conf", ".service", ".yml", ".yaml", ".toml", ".in", ".default",
          ".rules", ".sysctl", ".sysusers", ".tmpfiles")

OPENING = re.compile(r"\(?((?:of|who|whoever|whose|whom|what|that"
                     r"|such (?:as|is|are|was|were|has|have|that))\b(?!['-]))", re.I)
# Openings of the same form that are idiomatic English.
IDIOM = re.compile(r"\(?(?:[Oo]f course|That (?:is|was|means|would|way|said)|that is,)\b")
SENTENCE_END = re.compile(r"[.!?][\"')\]`]*(?=\s|$)")
MESSAGE_WORDS_MIN = 4  # a shorter string is a word or a key


# --- finding texts: each yields (line, text), a paragraph each ------------------------------------

def paragraphs(lines):
    """Cuts [(line number, text)] at blank lines, list items and gaps; joins each piece."""
    piece, last = [], None
    for number, text in lines:
        text = text.strip()
        item = re.match(r"(?:[*-]|\d+\.) +(?=\S)", text)
        if piece and (not text or item or number > last + 1):
            yield piece[0][0], " ".join(part for _, part in piece)
            piece = []
        last = number
        if text:
            piece.append((number, text[item.end():] if item else text))
    if piece:
        yield piece[0][0], " ".join(part for _, part in piece)


def slash_comments(text):
    lines = []
    for match in LITERALS.finditer(text):
        comment, number = match.group(0), line_of(text, match.start())
        if comment.startswith("//"):
            starts_line = not text[text.rfind("\n", 0, match.start()) + 1:match.start()].strip()
            if not starts_line:
                yield from paragraphs(lines)
                lines = []
            lines.append((number, comment.lstrip("/<!")))
        elif comment.startswith("/*"):
            yield from paragraphs(lines)
            lines = [(number + index, line.strip().strip("/*").strip("!"))
                     for index, line in enumerate(comment.split("\n"))]
            yield from paragraphs(lines)
            lines = []
    yield from paragraphs(lines)


def hash_comments(text):
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        found = re.search(r"(?:^|\s)#(?!!)(?: |$)", line)
        if not found:
            continue
        if line[:found.start()].strip():
            # A hash between quotes begins no comment.
            if any(line[:found.start()].count(quote) % 2 for quote in "\"'"):
                continue
            yield from paragraphs(lines)
            lines = []
        lines.append((number, line[found.end():]))
    yield from paragraphs(lines)


def python_comments(text):
    lines = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or token.string.startswith("#!"):
            continue
        if token.line[:token.start[1]].strip():
            yield from paragraphs(lines)
            lines = []
        lines.append((token.start[0], token.string.lstrip("# ")))
    yield from paragraphs(lines)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            documented = ast.get_docstring(node, clean=False)
            if documented:
                yield from paragraphs(enumerate(documented.split("\n"), node.body[0].lineno))


def comments(path, text):
    if path.endswith(SLASHES):
        return slash_comments(text)
    kind = language(path, text)
    if kind == "python":
        return python_comments(text)
    return hash_comments(text) if kind == "shell" or path.endswith(HASHES) else ()


def cpp_strings(text):
    """Yields (line, text, whether a sentence may begin with it); adjacent literals are one."""
    found = [match for match in LITERALS.finditer(text) if match.group(0)[0] == '"']
    index = 0
    while index < len(found):
        first = last = found[index]
        joined = first.group(0)[1:-1]
        index += 1
        while index < len(found) and not text[last.end():found[index].start()].strip():
            last = found[index]
            joined += last.group(0)[1:-1]
            index += 1
        before = text[text.rfind("\n", 0, first.start()) + 1:first.start()].strip() or \
            text[:first.start()].rstrip()[-8:]
        if before.startswith("#") or before.endswith("extern"):
            continue
        yield line_of(text, first.start()), joined.replace("\\n", " "), before[-1:] not in "+<?:"


def python_strings(text):
    """Yields what cpp_strings() yields. Only an f-string's first piece may begin a sentence."""
    tree = ast.parse(text)
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
             for part in node.values[1:]}
    inner |= {id(node.right) for node in ast.walk(tree) if isinstance(node, ast.BinOp)}
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and \
                id(node) not in documented:
            yield node.lineno, node.value, id(node) not in inner


# --- rules ----------------------------------------------------------------------------------------

def riddles(text, begins=True):
    """Yields the opening of each sentence that opens with a clause and is not a question.

    A text may begin in lower case, a sentence inside it does not. `begins` is false for a text that
    continues another."""
    starts = [0] + [end.end() for end in SENTENCE_END.finditer(text)]
    for start, end in zip(starts, starts[1:] + [len(text)]):
        sentence = text[start:end].strip()
        opening = OPENING.match(sentence)
        if not opening or IDIOM.match(sentence) or sentence.rstrip("\"')]`").endswith("?"):
            continue
        if begins if start == 0 else opening[1][0].isupper():
            yield " ".join(sentence.split()[:4])


def check_openings(tree):
    for path, text in tree.items():
        for line, paragraph in comments(path, text):
            for opening in riddles(paragraph):
                yield path, line, f"a comment with '{opening} ...'", REMEDY


def check_messages(tree):
    for path, text in tree.items():
        kind = language(path, text)
        strings = {"c++": cpp_strings, "python": python_strings}.get(kind)
        for line, message, begins in strings(text) if strings else ():
            if len(message.split()) < MESSAGE_WORDS_MIN or message[:1].isspace():
                continue
            for opening in riddles(message, begins):
                yield path, line, f"a text with '{opening} ...'", REMEDY


def markdown_lines(text):
    """Yields (line number, line) of the prose: no fenced or indented code."""
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, line


def check_markdown(tree):
    for path, text in tree.items():
        if not path.endswith(".md"):
            continue
        for number, line in markdown_lines(text):
            # A link cannot be wrapped, and a table row cannot either.
            shown = re.sub(r"\]\([^)]*\)|https?://\S+", "]", line)
            if len(shown) > MARKDOWN_COLUMNS_MAX and not line.lstrip().startswith("|"):
                yield path, number, f"{len(line)} columns of prose", \
                    f"wrap at {MARKDOWN_COLUMNS_MAX}"


def check_readmes(tree):
    for path, text in tree.items():
        if path == "README.md" and text.count("\n") > ROOT_README_LINES_MAX:
            yield path, 1, f"{text.count(chr(10))} lines", \
                f"at most {ROOT_README_LINES_MAX}: move the details to docs/"
        if path.endswith("/README.md"):
            prose = "\n".join(line for _, line in markdown_lines(text))
            words = len(re.findall(r"\S*\w\S*", prose))
            if words > FOLDER_README_WORDS_MAX:
                yield path, 1, f"{words} words", \
                    f"at most {FOLDER_README_WORDS_MAX}: move what users need to docs/"


RULES = (check_openings, check_messages, check_markdown, check_readmes)
