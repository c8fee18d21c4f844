"""Reads the tree, and finds comments, literals and functions in a text."""
import ast
import os
import re
import subprocess

from house import CODE, SKIPPED, TEXT


def list_files(root):
    """Returns the paths of the files below root. With git, these are the files that are tracked or
    not ignored."""
    command = ["git", "-C", root, "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        paths = [path for path in listed.split("\0") if path]
    except (OSError, subprocess.CalledProcessError):
        paths = []
        for folder, _, names in os.walk(root):
            paths += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(p for p in set(paths)
                  if not SKIPPED.search(p) and os.path.isfile(os.path.join(root, p)))


def read_tree(root):
    """Returns {path: text} of the files that are text by their ending or their first line."""
    tree = {}
    for path in list_files(root):
        with open(os.path.join(root, path), "rb") as file:
            data = file.read()
        if path.endswith(TEXT) or data.startswith(b"#!"):
            tree[path] = data.decode("utf-8", "replace")
    return tree


def language(path, text):
    first = text.split("\n", 1)[0]
    if path.endswith(CODE):
        return "c++"
    if path.endswith(".py") or (first.startswith("#!") and "python" in first):
        return "python"
    if path.endswith(".sh") or re.match(r"#!.*\b(ba)?sh\b", first):
        return "shell"
    return "other"


def blank_out(match):
    return re.sub(r"[^\n]", " ", match.group(0))


LITERALS = re.compile(
    r'//[^\n]*|/\*.*?\*/|\bR"(?P<tag>[^()\s]*)\(.*?\)(?P=tag)"'
    r'|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\'', re.S)


def strip_literals(text):
    """Returns C++ with comments and literals blanked; all other characters keep their places."""
    return LITERALS.sub(blank_out, text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


NOT_A_FUNCTION = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b[^()]*$")
IN_INITIALIZERS = re.compile(r"\)\s*(noexcept\s*)?:(?!:)")


def cpp_functions(text):
    """Yields (first line, line count) of each outermost braced body after a parameter list."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank_out, strip_literals(text), flags=re.M)
    stack = []  # per open brace: "function", "scope", "member" (initialiser) or "inner"
    start = header_start = 0
    for match in re.finditer(r"[{};]", code):
        at, char = match.start(), match.group(0)
        header = code[header_start:at]
        if char == "{":
            if "function" in stack:
                kind = "inner"
            elif IN_INITIALIZERS.search(header) and re.search(r"[\w>]$", header):
                kind = "member"
            elif ")" in header and not NOT_A_FUNCTION.search(header):
                kind = "function"
                start = header_start + len(header) - len(header.lstrip())
            else:
                kind = "scope"
            stack.append(kind)
            if kind == "member":
                continue
        elif char == "}" and stack:
            kind = stack.pop()
            if kind == "function":
                yield line_of(code, start), code.count("\n", start, at) + 1
            if kind == "member":
                continue
        if not (stack and stack[-1] == "member"):
            header_start = at + 1


def without_inner_braces(body):
    """Returns the text of a class without the bodies and initialisers inside it; lines stay."""
    kept, depth = [], 0
    for char in body:
        depth -= char == "}"
        if depth == 0 or char == "\n":
            kept.append(";" if char == "}" else char)
        depth += char == "{"
    return "".join(kept)


def closing_brace(code, opening):
    depth = 0
    for match in re.finditer(r"[{}]", code[opening:]):
        depth += 1 if match.group(0) == "{" else -1
        if depth == 0:
            return opening + match.start()
    return len(code)


CLASS = re.compile(r"^[ \t]*(?:template\s*<[^{;]*>\s*)?(?:class|struct)\s+(?:alignas\([^)]*\)\s*)?"
                   r"(?:\[\[\w+\]\]\s*)?(\w+)(?:\s+final)?(?:\s*:[^;{]*)?\s*\{", re.M)
METHOD = re.compile(r"(?:^|[\s*&~>])(~?\w+|operator\W{1,3})\s*\([^;]*$")
NOT_A_METHOD = re.compile(r"^\s*(?:friend|using|static_assert|typedef|PBOX_)\b")


def cpp_classes(text):
    """Yields (line, name, method count) of each class; inherited methods do not count."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank_out, strip_literals(text), flags=re.M)
    for match in CLASS.finditer(code):
        opening = match.end() - 1
        body = without_inner_braces(code[opening + 1:closing_brace(code, opening)])
        body = re.sub(r"\b(?:public|private|protected)\s*:", ";", body)
        methods = 0
        for statement in body.split(";"):
            while re.search(r"<[^<>]*>", statement):  # template arguments may hold signatures
                statement = re.sub(r"<[^<>]*>", "", statement)
            statement = re.sub(r"\[\[\w+\]\]", "", statement)
            declared = statement.split("=")[0] if "operator" not in statement else statement
            methods += bool(METHOD.search(declared) and not NOT_A_METHOD.search(declared))
        yield line_of(code, match.start(1)), match.group(1), methods


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno - node.lineno + 1


def shell_functions(text):
    start = None
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(r"[\w-]+\s*\(\)\s*[{(]\s*$", line):
            start = number
        elif start and re.match(r"[})]", line):
            yield start, number - start + 1
            start = None
