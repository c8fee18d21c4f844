#!/usr/bin/env python3
"""Copies product sources with mutants in them. At run time a number selects the active mutant.

  generate.py --list TABLE                 the files that have mutants, one per line
  generate.py --sources TABLE SOURCE_ROOT  the sources that have mutants, or include a header that
                                           has, one per line
  generate.py TABLE SOURCE_ROOT OUTPUT     write their copies, and mutants.inc with names and words
"""
import pathlib
import re
import sys
import tomllib

OPEN, CLOSE = "«", "»"
INCLUDE = '#include "tests/sim/mutants/mutant.h"\n'


def fail(mutant, what):
    sys.exit(f"mutant '{mutant['name']}': {what}")


def place_of(mutant, source):
    """Returns (begin, end) of the text that the mutant replaces."""
    find = mutant["find"]
    if find.count(OPEN) != 1 or find.count(CLOSE) != 1:
        fail(mutant, f"mark what is replaced with one {OPEN} and one {CLOSE}")
    before, rest = find.split(OPEN)
    target, after = rest.split(CLOSE)
    text = before + target + after
    count = source.count(text)
    if count != 1:
        fail(mutant, f"its text stands {count} times in {mutant['file']}, must be once: {text!r}")
    begin = source.index(text) + len(before)
    return begin, begin + len(target)


def mutated(source, mutants):
    """Returns the source with all of these (number, mutant) pairs in it."""
    by_place = {}
    for number, mutant in mutants:
        by_place.setdefault(place_of(mutant, source), []).append((number, mutant))
    places = sorted(by_place, reverse=True)
    for later, earlier in zip(places, places[1:]):
        if earlier[1] > later[0]:
            fail(by_place[later][0][1], "overlaps another mutant; use one text for both")
    for begin, end in places:
        text = source[begin:end]
        is_statement = text.rstrip().endswith((";", "}"))
        for number, mutant in by_place[begin, end]:
            chosen = f"::pbox::sim::mutant() == {number}"
            if is_statement:
                text = f"if ({chosen}) {{ {mutant['with']} }} else {{ {text} }}"
            else:
                text = f"({chosen} ? ({mutant['with']}) : ({text}))"
        source = source[:begin] + text + source[end:]
    first_include = source.index("#include")
    return source[:first_include] + INCLUDE + source[first_include:]


def included(root, file, seen):
    """Adds the file and all that it includes to `seen`."""
    if file in seen or not (root / file).exists():
        return seen
    seen.add(file)
    text = (root / file).read_text(encoding="utf-8")
    for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
        included(root, name, seen)
    return seen


def sources_with(root, mutated):
    """Yields the sources that have a mutant, or include a header that has one."""
    for folder in ("nic", "pipeline", "appliance", "worker", "tests/sim"):
        for path in sorted((root / folder).rglob("*.cc")):
            file = str(path.relative_to(root))
            if mutated & included(root, file, set()):
                yield file


def write(output, contents):
    """Writes the copies. Unchanged files keep their modification time; stale copies are deleted."""
    for stale in set(output.rglob("*.*")) - set(contents):
        stale.unlink()
    for path, text in contents.items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main():
    arguments = sys.argv[1:]
    listing = arguments[:1] in (["--list"], ["--sources"])
    table = pathlib.Path(arguments[1 if listing else 0])
    mutants = list(enumerate(tomllib.loads(table.read_text(encoding="utf-8"))["mutant"], 1))
    names = [mutant["name"] for _, mutant in mutants]
    if len(set(names)) != len(names):
        sys.exit("two mutants have one name")
    # A mutant may change more than one place.
    edits = [(number, {"name": mutant["name"], **edit})
             for number, mutant in mutants for edit in [mutant, *mutant.get("also", [])]]
    for _, mutant in mutants:
        if not mutant.get("by"):
            fail(mutant, "name its invariant in `by`: what the simulator says; | separates forms")
    files = sorted({edit["file"] for _, edit in edits})
    if arguments[0] == "--list":
        print("\n".join(files))
        return
    if arguments[0] == "--sources":
        print("\n".join(sources_with(pathlib.Path(arguments[2]), set(files))))
        return
    root, output = map(pathlib.Path, arguments[1:])
    contents = {}
    for file in files:
        source = (root / file).read_text(encoding="utf-8")
        here = [(number, edit) for number, edit in edits if edit["file"] == file]
        contents[output / file] = mutated(source, here)
    rows = [f'{{"{mutant["name"]}", "{mutant["about"]}", R"({mutant["by"]})", '
            f'{"true" if mutant.get("short") else "false"}, {mutant.get("from", 1)}, '
            f'{"true" if mutant.get("levels") else "false"}}},\n'
            for _, mutant in mutants]
    contents[output / "tests/sim/mutants/mutants.inc"] = "".join(rows)
    write(output, contents)


if __name__ == "__main__":
    main()
