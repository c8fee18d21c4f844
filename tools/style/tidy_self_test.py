"""Proves that each rule of tools/tidy fires on a bad snippet and is quiet on its good twin.

Each case is (what it shows, tree, text that the only finding contains; "" where none may be found).
A tree is path -> text, as tidy reads it. Words that tidy looks for in every text file are written
in two halves here, with "~" between the halves in prose.
"""
import re

from house import BANNED, DATA_PATH_BANNED, DATA_PATH_EXCEPTIONS, DATA_PATH_SET_UP, GETENV

HEADER = "// Why.\n#pragma once\n"
README = {"base/README.md": "# base\n"}


def function_of(lines, opening="int f(int a) {"):
    return opening + "\n" + "  a();\n" * (lines - 2) + "}\n"


def class_of(methods):
    return "class A {\n" + "  int a(int b) const { return c(b); }\n" * methods + "};\n"


SIZE_CASES = [
    ("a long file", {"nic/a.sh": "true\n" * 501}, "501 lines"),
    ("a file at the bound", {"nic/a.sh": "true\n" * 500}, ""),
    ("a long function", {"nic/a.cc": function_of(71)}, "a function of 71 lines"),
    ("a function at the bound", {"nic/a.cc": function_of(70)}, ""),
    ("a long method of a class in a namespace",
     {"nic/a.cc": "namespace a {\nclass B {\n" + function_of(71) + "};\n}\n"}, "nic/a.cc:3: a fun"),
    ("a long constructor behind braced initialisers",
     {"nic/a.cc": function_of(90, "A::A(int a) : a_{a}, b_{1} {")}, "a function of 90 lines"),
    ("a long test case", {"nic/a.cc": function_of(80, 'TEST_CASE("a { b") {')}, "of 80 lines"),
    ("a long class is not a long function",
     {"nic/a.cc": "class A final : public B {\n" + "  int a;\n" * 90 + "};\n"}, ""),
    ("braces in literals and comments do not count",
     {"nic/a.cc": "int f() {\n  // {\n  g('{', \"{\", R\"x({)x\", 1'000);\n}\n" + "int b;\n" * 90},
     ""),
    ("a long Python function", {"tools/a.py": "def f():\n" + "    a()\n" * 70}, "of 71 lines"),
    ("a long shell function", {"tools/a.sh": "f() {\n" + "  a\n" * 70 + "}\n"}, "of 72 lines"),
]

LINE_CASES = [
    ("a long line", {"nic/a.cc": "//" + "a" * 99 + "\n"}, "101 columns"),
    ("a long line of data", {"nic/a.json": "a" * 200 + "\n"}, ""),
    ("trailing whitespace", {"nic/a.cc": "int a; \n"}, "trailing whitespace"),
    ("a carriage return", {"nic/a.cc": "int a;\r\n"}, "trailing whitespace"),
    ("work left open", {"nic/a.cc": "// TO" "DO: all of it\n"}, "left open"),
    ("a broken thing left", {"nic/a.py": "# FIX" "ME\n"}, "left open"),
    ("a template of mktemp is not work left open", {"tools/a.sh": "mktemp /tmp/pbox.XXXXXX\n"}, ""),
    ("a path of one machine", {"tools/a.sh": "cd /ho" "me/someone\n"}, "a path of one machine"),
    ("a path below a variable", {"tools/a.sh": "cd \"$HOME/wo" "rk/a\" ~/wo" "rk/a\n"}, ""),
]

BANNED_CASES = [
    ("unseeded randomness", {"nic/a.cc": "int a = rand();\n"}, "base/rng.h"),
    ("a word that ends like a banned one", {"nic/a.cc": "int a = operand();\n"}, ""),
    ("a banned call in a comment or a literal", {"nic/a.cc": "// rand()\nf(\"gets(\");\n"}, ""),
    ("sprintf", {"nic/a.cc": "sprintf(a, b);\n"}, "snprintf"),
    ("snprintf", {"nic/a.cc": "snprintf(a, 3, b);\n"}, ""),
    ("strcpy", {"nic/a.cc": "strcpy(a, b);\n"}, "memcpy"),
    ("gets", {"nic/a.cc": "gets(a);\n"}, "getline"),
    ("system", {"nic/a.cc": "std::system(a);\n"}, "posix_spawn"),
    ("a system error", {"nic/a.cc": "std::system_error(a);\n"}, ""),
    ("std::regex", {"nic/a.cc": "std::regex a;\n"}, "parse by hand"),
    ("a test that opens a class", {"nic/a.cc": "#define private public\n"}, "public contract"),
    ("a matcher of Catch2 2", {"tests/a.cc": "using Catch::Matchers::Contains;\n"}, "Catch2 3"),
    ("the environment read in depth", {"nic/a.cc": "getenv(a);\n"}, "'getenv('"),
    ("the environment read at the rim", {"config/a.cc": "std::getenv(a);\n"}, ""),
    ("a header that opens a namespace", {"nic/a.h": HEADER + "using namespace a;\n"}, "name what"),
    ("a source that opens a namespace", {"nic/a.cc": "using namespace a;\n"}, ""),
]

DATA_PATH_CASES = [
    ("an exception", {"nic/a_datapath.cc": "throw 1;\n"}, "count and drop"),
    ("an exception in set-up", {"nic/a.cc": "throw 1;\n"}, ""),
    ("an allocation", {"pipeline/loop.cc": "a = new A;\n"}, "at admission"),
    ("a placement", {"pipeline/loop.cc": "new (a) A;\n"}, ""),
    ("a C allocation", {"pipeline/engine.h": HEADER + "a = malloc(3);\n"}, "at admission"),
    ("a hidden allocation", {"pipeline/loop.cc": "std::make_unique<A>();\n"}, "at admission"),
    ("a string", {"pipeline/sync/rules.cc": "std::string a;\n"}, "control thread"),
    ("a string in the worker's protocol", {"worker/protocol/window.h": HEADER + "std::string a;\n"},
     "control thread"),
    ("a use that is excepted", {"pipeline/job_shard.h": HEADER + "std::string name;\n"}, ""),
    ("another use in the same file", {"pipeline/job_shard.h": HEADER + "throw 1;\n"}, "and drop"),
    ("set-up beside it", {"worker/transport/control_channel.cc": "std::string a;\n"}, ""),
    ("a view of a string", {"pipeline/sync/rules.cc": "std::string_view a;\n"}, ""),
    ("a log line", {"nic/socket/port_datapath.cc": "spdlog::info(1);\n"}, "control thread logs"),
    ("formatting", {"nic/socket/port_datapath.cc": "printf(a);\n"}, "control thread logs"),
]

STRUCTURE_CASES = [
    ("a header without a guard", {"nic/a.h": "int a;\n"}, "no #pragma once"),
    ("a header compiled once per SIMD target",
     {"nic/a_inl.h": "#if defined(A) == defined(HWY_TARGET_TOGGLE)\n#endif\n"}, ""),
    ("the C header guards itself the C way", {"worker/include/pbox/pbox.h": "#ifndef A\n"}, ""),
    ("an arrow upwards", {"nic/a.cc": '#include "pipeline/b.h"\n'}, "nic/ includes pipeline/"),
    ("config below appliance", {"pipeline/a.cc": '#include "config/b.h"\n'}, "includes config/"),
    ("the floor includes something", {"base/a.cc": '#include "nic/b.h"\n'}, "base/ includes nic/"),
    ("the shim includes the daemon", {"worker/a.cc": '#include "appliance/b.h"\n'}, "worker/ incl"),
    ("product code includes a test", {"nic/a.cc": '#include "tests/b.h"\n'}, "includes tests/"),
    ("the C ABI in the daemon", {"appliance/a.cc": '#include "pbox/pbox.h"\n'}, "includes worker/"),
    ("the C ABI in a tool", {"tools/a.cc": '#include "pbox/pbox.h"\n'}, ""),
    ("arrows downwards", {"appliance/a.cc": '#include "config/a.h"\n#include "base/a.h"\n'}, ""),
    ("an include beside the file", {"nic/a.cc": '#include "b.h"\n'}, "path from the root"),
    ("a cycle of files",
     {"nic/a.h": HEADER + '#include "nic/b.h"\n', "nic/b.h": HEADER + '#include "nic/a.h"\n'},
     "files include each other: nic/a.h -> nic/b.h -> nic/a.h"),
    ("a cycle of folders",
     {"nic/a/a.cc": '#include "nic/b/b.h"\n', "nic/b/b.h": HEADER,
      "nic/b/c.cc": '#include "nic/a/d.h"\n', "nic/a/d.h": HEADER},
     "folders include each other: nic/a -> nic/b -> nic/a"),
    ("a composition root and the contract beside it",
     {"nic/a.cc": '#include "nic/b/b.h"\n', "nic/b/b.h": HEADER + '#include "nic/c.h"\n',
      "nic/c.h": HEADER}, ""),
    ("a new top-level folder", {"utilities/a.cc": "int a;\n"}, "top-level folder"),
    ("a folder without a README", {"base/a.cc": "int a;\n", "base/README.md": None}, "no README"),
    ("a folder with nothing in it yet",
     {"base/CMakeLists.txt": "f()\n", "base/README.md": None}, ""),
    ("an exception for a file that is gone",
     {"tools/style/house.py": "",
      **{path: HEADER for path in [*DATA_PATH_SET_UP, *DATA_PATH_EXCEPTIONS][:-1]}},
     f"an exception for {[*DATA_PATH_SET_UP, *DATA_PATH_EXCEPTIONS][-1]}, which is gone"),
    ("a folder with too many files",
     {f"worker/a{index}.cc": "int a;\n" for index in range(14)}, "15 files of its own"),
    ("a folder with its files in subfolders",
     {f"worker/a/a{index}.cc": "int a;\n" for index in range(14)}, ""),
    ("a class of too many lines",
     {f"appliance/control/job_registry_{name}.cc": "PBOX_CHECK(a);\n" * 500 for name in "abc"},
     "1500 lines together"),
    ("a release that is stated twice",
     {"CMakeLists.txt": "project(pbox VERSION 1.2.3)\n", "CHANGELOG.md": "## 1.2.3 - today\n",
      "tools/packaging/changelog": "pbox (1.2.2) stable\n"}, "CMakeLists.txt says 1.2.3"),
    ("a class of too many methods", {"nic/a.h": HEADER + class_of(61)}, "A has 61 methods"),
    ("a class at the bound", {"nic/a.h": HEADER + class_of(60)}, ""),
    ("calls in bodies and fields of functions are no methods",
     {"nic/a.h": HEADER + class_of(60).replace(
         "};", "  int b_ = c(1);\n  std::function<void(int)> d_;\n  friend void e(A&);\n};")}, ""),
    ("control code without assertions", {"appliance/a.cc": "int a;\n" * 420}, "7 more"),
    ("control code with assertions",
     {"appliance/a.cc": "int a;\n" * 413 + "PBOX_CHECK(a);\n" * 7}, ""),
    ("a data path without assertions",
     {"pipeline/loop.h": HEADER + "int a;\n" * 240 + "PBOX_CHECK(a);\n" * 7}, "3 more"),
    ("a data path with assertions",
     {"pipeline/loop.h": HEADER + "int a;\n" * 238 + "PBOX_DCHECK(a);\n" * 10}, ""),
    ("a shell script that does not parse", {"tools/a.sh": "if true; then\n"}, "correct the syntax"),
]

# "~" stands where a word is cut in two.
PROSE_CASES = [
    ("a comment that opens with a genitive", {"nic/a.cc": "// O~f all jobs.\n"}, "Of all jobs"),
    ("a trailing comment in lower case", {"nic/a.cc": "int a;  // o~f all jobs\n"}, "of all jobs"),
    ("its second line", {"nic/a.cc": "int a;  // bytes\n        // of all jobs\n"}, ""),
    ("a bracket before it", {"nic/a.cc": "// (o~f all jobs)\n"}, "of all jobs"),
    ("a sentence inside a comment", {"nic/a.cc": "// Sends. W~ho asks\n// gets it.\n"}, "Who asks"),
    ("a clause inside a sentence", {"nic/a.cc": "// Sends to a rank that asks, of any job.\n"}, ""),
    ("a word that only begins so", {"nic/a.cc": "// Often. Whole. Thatch.\n"}, ""),
    ("a question", {"nic/a.cc": "// W~ho is late?\n"}, ""),
    ("an idiom", {"nic/a.cc": "// O~f course. That is why. Such packets are dropped.\n"}, ""),
    ("a relative clause", {"nic/a.cc": "// T~hat the box has lost.\n"}, "That the box"),
    ("a relative clause in lower case", {"nic/a.cc": "int a;  // t~hat is lost\n"}, "that is lost"),
    ("a possessive", {"nic/a.cc": "// W~hose rank is lost waits.\n"}, "Whose rank"),
    ("an object", {"nic/a.cc": "// W~hom the box knows.\n"}, "Whom the"),
    ("anybody", {"nic/a.cc": "// W~hoever asks.\n"}, "Whoever asks"),
    ("an indirect question", {"nic/a.cc": "// W~hat a box keeps.\n"}, "What a box"),
    ("a comparison", {"nic/a.cc": "// Sends. S~uch as ask get it.\n"}, "Such as ask"),
    ("such alone", {"nic/a.cc": "// S~uch are dropped.\n"}, "Such are"),
    ("an item of a list", {"nic/a.cc": "// Sends:\n// * o~f a job\n"}, "'of a"),
    ("a block comment", {"worker/a.c": "/* Sends.\n * W~hat it has.\n */\n"}, "What it has"),
    ("a comment of protobuf", {"nic/a.proto": "int a = 1;  // o~f all jobs\n"}, "of all jobs"),
    ("a comment of Python", {"tools/a.py": "a = 1  # o~f all jobs\n"}, "of all jobs"),
    ("a docstring", {"tools/a.py": 'def f():\n    """W~hat a box keeps."""\n'}, "a.py:2: a comm"),
    ("its second paragraph", {"tools/a.py": '"""Sends.\n\nW~ho asks gets it."""\n'}, "Who asks"),
    ("a comment of the shell", {"tools/a.sh": "true  # w~hat a box keeps\n"}, "what a box"),
    ("a hash inside quotes", {"tools/a.sh": "echo 'a # w~hat a box'\n"}, ""),
    ("a comment of CMake", {"nic/CMakeLists.txt": "# W~hat a box keeps.\n"}, "What a box"),
    ("a comment of a unit", {"systemd/a.service": "# W~hat a box keeps.\n"}, "What a box"),
    ("a help text", {"nic/a.cc": 'f("a", "w~hat a box keeps");\n'}, "what a box"),
    ("a message over two literals", {"nic/a.cc": 'f("w~hat a"\n  " box keeps");\n'}, "what a box"),
    ("a sentence inside a message", {"nic/a.cc": 'f("lost. W~ho asks gets it");\n'}, "Who asks"),
    ("the rest of a message", {"nic/a.cc": 'f(a + "of all jobs here");\n'}, ""),
    ("a key", {"nic/a.cc": 'f("what");\n#include <of all jobs here>\n'}, ""),
    ("a message of Python", {"tools/a.py": 'f("w~hat a box keeps")\n'}, "what a box"),
    ("the rest of a message of Python", {"tools/a.py": 'f(a + "of all jobs here")\n'}, ""),
    ("a wide line of Markdown", {"nic/a.md": "a " * 51 + "a\n"}, "103 columns of prose"),
    ("a wide row of a table", {"nic/a.md": "| " + "a " * 51 + "|\n"}, ""),
    ("a wide line of code", {"nic/a.md": "```\n" + "a " * 51 + "a\n```\n"}, ""),
    ("a long link", {"nic/a.md": "See [the page](" + "a/" * 60 + ").\n"}, ""),
    ("a README of many words", {"base/README.md": "a\n" * 451}, "451 words"),
    ("a README of many lines", {"base/README.md": "a\n\n" * 450}, ""),
    ("a long front page", {"README.md": "a\n" * 121}, "121 lines"),
]


def with_readmes(tree):
    full = dict(README)
    full.update({f"{path.split('/')[0]}/README.md": "# What\n" for path in tree if "/" in path})
    full.update(tree)
    return {path: text for path, text in full.items() if text is not None}


def run(rules):
    """Returns the exit status: 0 when each case finds what it should and no rule went untried."""
    failures, fired = [], set()
    cases = SIZE_CASES + LINE_CASES + BANNED_CASES + DATA_PATH_CASES + STRUCTURE_CASES + [
        (shows, {path: text.replace("~", "") for path, text in tree.items()}, expected)
        for shows, tree, expected in PROSE_CASES]
    for shows, tree, expected in cases:
        found = []
        for rule in rules:
            for path, line, what, remedy in rule(with_readmes(tree)):
                found.append(f"{path}:{line}: {what}; {remedy}")
                fired.add(rule.__name__)
        right = len(found) == 1 and expected in found[0] if expected else not found
        if not right:
            failures.append(f"{shows}: expected {expected or 'nothing'!r}, found {found}")
    failures += [f"no case makes {rule.__name__} fire" for rule in rules
                 if rule.__name__ not in fired]
    bans = BANNED + [GETENV] + DATA_PATH_BANNED
    tried = {remedy for pattern, remedy in bans
             if any(re.search(pattern, text)
                    for _, tree, expected in cases if expected
                    for text in tree.values() if text)}
    failures += [f"no bad snippet for the ban that says: {remedy}"
                 for _, remedy in bans if remedy not in tried]
    for failure in failures:
        print("self-test:", failure)
    print(f"tidy self-test: {len(cases)} cases, {len(failures)} failures")
    return 1 if failures else 0
