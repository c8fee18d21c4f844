"""Rules about sizes, lines, calls, includes and folders. Each yields (path, line, what, remedy)."""
import fnmatch
import os
import re
import shutil
import subprocess

from house import (ARROWS, ASSERTED_FOLDERS, BANNED, CLANG_FORMAT_VERSION, CLASS_LINES_MAX,
                   CLASS_METHODS_MAX, CODE,
                   DATA_PATH, DATA_PATH_BANNED, DATA_PATH_EXCEPTIONS, DATA_PATH_SET_UP,
                   FILE_LINES_MAX, FUNCTION_LINES_MAX, GETENV, GETENV_FOLDERS, LEFT_OPEN,
                   LINE_COLUMNS_MAX, LINE_LENGTH_FREE, LINES_PER_ASSERTION,
                   LINES_PER_ASSERTION_DATA_PATH, LOOSE_FILES_MAX, MACHINE_PATH, MAY_USE_ABI,
                   PUBLIC_INCLUDE, TOP_FOLDERS)
from source import (cpp_classes, cpp_functions, language, line_of, python_functions,
                    shell_functions, strip_literals)

ASSERTION_SAMPLE_LINES_MIN = 200  # with fewer lines a density means nothing


def check_sizes(tree):
    readers = {"c++": cpp_functions, "python": python_functions, "shell": shell_functions}
    for path, text in tree.items():
        kind = language(path, text)
        if kind != "other" and text.count("\n") > FILE_LINES_MAX:
            yield path, 1, f"{text.count(chr(10))} lines", "split by concern: <noun>_<concern>"
        for line, count in readers.get(kind, lambda _: ())(text):
            if count > FUNCTION_LINES_MAX:
                yield path, line, f"a function of {count} lines", "name its phases as functions"


def check_lines(tree):
    for path, text in tree.items():
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > LINE_COLUMNS_MAX and not path.endswith(LINE_LENGTH_FREE):
                yield path, number, f"{len(line)} columns", f"wrap at {LINE_COLUMNS_MAX}"
            if line != line.rstrip():
                yield path, number, "trailing whitespace", "remove it"
            if LEFT_OPEN.search(line):
                yield path, number, "left open", "finish it, or say why it is right as it is"
            if MACHINE_PATH.search(line):
                yield path, number, "a path of one machine", "derive it from the tree or an option"


def matches(path, patterns):
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


def is_data_path(path):
    return path.endswith(CODE) and matches(path, DATA_PATH) and path not in DATA_PATH_SET_UP


def check_data_path_names(tree):
    """Finds exceptions for files that are gone. They would apply to new files of these names."""
    if "tools/style/house.py" not in tree:
        return
    for path in [*DATA_PATH_SET_UP, *DATA_PATH_EXCEPTIONS]:
        if path not in tree:
            yield "tools/style/house.py", 1, f"an exception for {path}, which is gone", "delete it"


def check_banned(tree):
    for path, text in tree.items():
        if not path.endswith(CODE):
            continue
        rules = list(BANNED)
        if path.split("/")[0] not in GETENV_FOLDERS:
            rules.append(GETENV)
        if path.endswith(".h"):
            rules.append((r"\busing\s+namespace\b", "name what is used"))
        excepted = DATA_PATH_EXCEPTIONS.get(path, {})
        if is_data_path(path):
            rules += DATA_PATH_BANNED
        code = strip_literals(text)
        for pattern, remedy in rules:
            for match in re.finditer(pattern, code):
                if match.group(0) not in excepted:
                    yield path, line_of(code, match.start()), f"'{match.group(0)}'", remedy


def check_headers(tree):
    for path, text in tree.items():
        if not path.endswith(".h") or path.startswith(PUBLIC_INCLUDE):
            continue
        per_target = path.endswith("_inl.h") and "HWY_TARGET_TOGGLE" in text
        if not per_target and not re.search(r"^#pragma once$", text, re.M):
            yield path, 1, "no #pragma once", "put it below the opening comment"


def includes(path, text):
    """Yields (line, included path from the root) for the project's own includes."""
    for match in re.finditer(r'^\s*#\s*include\s+"([^"]+)"', text, re.M):
        target = match.group(1)
        if target.startswith("pbox/"):
            target = PUBLIC_INCLUDE + target
        yield line_of(text, match.start(1)), target


def check_arrows(tree):
    for path, text in tree.items():
        if not path.endswith(CODE):
            continue
        own = path.split("/")[0]
        for line, target in includes(path, text):
            other = target.split("/")[0]
            if target.startswith(PUBLIC_INCLUDE) and path.startswith(MAY_USE_ABI):
                continue
            if other not in TOP_FOLDERS:
                if not target.endswith(".pb.h"):
                    yield path, line, f'"{target}"', "include by the path from the root"
            elif own in ARROWS and other not in ARROWS[own]:
                allowed = ", ".join(sorted(ARROWS[own]))
                yield path, line, f"{own}/ includes {other}/", f"{own}/ may include: {allowed}"


def find_cycle(graph):
    """Returns one cycle of the graph (node -> set of nodes) as a list; an empty one if there is
    none."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node):] + [node]
        if node in done:
            return []
        path.append(node)
        for following in sorted(graph.get(node, ())):
            cycle = visit(following)
            if cycle:
                return cycle
        path.pop()
        done.add(node)
        return []

    for node in sorted(graph):
        cycle = visit(node)
        if cycle:
            return cycle
    return []


def check_cycles(tree):
    """Finds cycles among files, and among folders. A folder and a folder inside it may include each
    other: a composition root includes its subfolders, and they include the contract beside it."""
    files, folders = {}, {}
    for path, text in tree.items():
        if not path.endswith(CODE):
            continue
        folder = os.path.dirname(path)
        for _, target in includes(path, text):
            files.setdefault(path, set()).add(target)
            other = os.path.dirname(target)
            nested = os.path.commonpath(["/" + folder, "/" + other]) in ("/" + folder, "/" + other)
            if target in tree and not nested:
                folders.setdefault(folder, set()).add(other)
    for what, graph in (("files", files), ("folders", folders)):
        cycle = find_cycle(graph)
        if cycle:
            where = cycle[0] if what == "files" else cycle[0] + "/"
            yield where, 1, f"{what} include each other: {' -> '.join(cycle)}", \
                "move what both need below both"


def check_folders(tree):
    for folder in sorted({path.split("/")[0] for path in tree if "/" in path}):
        if folder not in TOP_FOLDERS:
            yield folder + "/", 1, "a new top-level folder", "the design fixes the top level"
        elif not folder.startswith("."):
            bare = all(os.path.basename(path) == "CMakeLists.txt"
                       for path in tree if path.startswith(folder + "/"))
            if not bare and f"{folder}/README.md" not in tree:
                yield folder + "/", 1, "no README.md", "say what it is for and what to read first"


def check_rooms(tree):
    for folder, most in LOOSE_FILES_MAX.items():
        loose = [path for path in tree if os.path.dirname(path) == folder]
        if len(loose) > most:
            yield folder + "/", 1, f"{len(loose)} files of its own", \
                f"at most {most}: a subfolder takes what belongs together"
    for pattern, most in CLASS_LINES_MAX.items():
        lines = sum(tree[path].count("\n") for path in tree if fnmatch.fnmatch(path, pattern))
        if lines > most:
            yield pattern, 1, f"{lines} lines together", f"at most {most}: extract a class"


def check_classes(tree):
    for path, text in tree.items():
        for line, name, methods in cpp_classes(text) if path.endswith(CODE) else ():
            if methods > CLASS_METHODS_MAX:
                yield path, line, f"{name} has {methods} methods", "extract a class with its state"


def density(tree, in_question):
    """Returns (assertions, lines) of the files that `in_question` selects."""
    texts = [text for path, text in tree.items() if path.endswith(CODE) and in_question(path)]
    code = [strip_literals(text) for text in texts]
    return (sum(len(re.findall(r"\bPBOX_D?CHECK\w*\s*\(", text)) for text in code),
            sum(text.count("\n") for text in texts))


def assertion_densities(tree):
    """Yields (what, assertions, lines, lines allowed for each) overall and for the data path."""
    overall = density(tree, lambda path: path.split("/")[0] in ASSERTED_FOLDERS)
    yield "/, ".join(ASSERTED_FOLDERS) + "/", *overall, LINES_PER_ASSERTION
    yield "the data path", *density(tree, is_data_path), LINES_PER_ASSERTION_DATA_PATH


def check_assertions(tree):
    for what, assertions, lines, most in assertion_densities(tree):
        needed = -(-lines // most)
        if assertions < needed and lines >= ASSERTION_SAMPLE_LINES_MIN:
            yield "base/check.h", 1, f"{assertions} assertions in {lines} lines of {what}", \
                f"at least one per {most} lines: {needed - assertions} more"


# The files that state the release besides CMakeLists.txt, each with the pattern of the statement.
VERSIONS = {
    "tools/packaging/changelog": r"\Apbox \(([^)]+)\)",
    "CHANGELOG.md": r"^## (\d\S*)",
}


def check_version(tree):
    stated = re.search(r"\bproject\(pbox VERSION ([\d.]+)", tree.get("CMakeLists.txt", ""))
    for path, pattern in VERSIONS.items() if stated else ():
        found = re.search(pattern, tree.get(path, ""), re.M)
        if not found or found[1] != stated[1]:
            line = line_of(tree[path], found.start()) if found else 1
            yield path, line, f"release {found[1] if found else 'unknown'}", \
                f"CMakeLists.txt says {stated[1]}"


def check_shell(tree):
    for path, text in tree.items():
        if language(path, text) != "shell":
            continue
        parsed = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True,
                                check=False)
        if parsed.returncode != 0:
            line = re.search(r"line (\d+)", parsed.stderr)
            number = int(line.group(1)) if line else 1
            yield path, number, parsed.stderr.strip(), "correct the syntax"


def check_format(root, tree):
    program = shutil.which("clang-format")
    paths = [path for path in tree if path.endswith(CODE)]
    if program is None or not paths:
        return
    version = subprocess.run([program, "--version"], check=False, capture_output=True, text=True)
    if f" {CLANG_FORMAT_VERSION}." not in version.stdout:
        return  # other versions break lines in other places
    checked = subprocess.run([program, "--dry-run", "-Werror"] + paths, cwd=root, check=False,
                             capture_output=True, text=True)
    for match in re.finditer(r"^([^:\n]+):(\d+):\d+: error: ", checked.stderr, re.M):
        yield match.group(1), int(match.group(2)), "not formatted", f"clang-format -i {match[1]}"


RULES = (check_sizes, check_lines, check_banned, check_data_path_names, check_headers, check_arrows,
         check_cycles, check_folders, check_rooms, check_classes, check_assertions, check_version,
         check_shell)
