// The example file is the documentation of every key, so it is held to what the parser does.
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <sstream>

#include "config/fields.h"
#include "config/parse.h"
#include "config/value.h"

namespace pbox::config::example_test {
namespace {

// A key of the file: the value it shows, and the comment above it as one line.
struct Entry {
  std::string value;
  std::string comment;
};

std::string read_example() {
  std::ifstream file(PBOX_EXAMPLE_FILE);
  REQUIRE(file);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Prose has a blank after its '#', a key at its default has none.
bool is_key(const std::string& line) {
  return line.size() > 1 && line[0] == '#' && line[1] != ' ';
}

std::string uncomment(const std::string& example) {
  std::istringstream lines(example);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    text += (is_key(line) ? line.substr(1) : line) + '\n';
  }
  return text;
}

// Returns the entries by "section.key". A key that is shown twice fails in the parser, once it is
// uncommented.
std::map<std::string, Entry> entries(const std::string& example) {
  std::map<std::string, Entry> found;
  std::istringstream lines(example);
  std::string section;
  std::string comment;
  for (std::string line; std::getline(lines, line);) {
    if (is_key(line)) {
      const size_t equals = line.find('=');
      REQUIRE(equals != std::string::npos);
      const std::string key = section + "." + trim(line.substr(1, equals - 1));
      found[key] = {trim(line.substr(equals + 1)), comment};
    } else if (!line.empty() && line[0] == '[') {
      section = line.substr(1, line.find(']') - 1);
    }
    comment = line.starts_with("# ") ? comment + line.substr(1) : "";
  }
  return found;
}

Config defaults() {
  const auto outcome = parse_text("");
  REQUIRE(outcome.config);
  return *outcome.config;
}

}  // namespace

TEST_CASE("the example file changes nothing as it is") {
  const auto outcome = parse_text(read_example());
  CHECK(outcome.errors == std::vector<std::string>{});
  REQUIRE(outcome.config);
  CHECK(*outcome.config == defaults());
}

TEST_CASE("the example file with every key uncommented gives the defaults") {
  const auto outcome = parse_text(uncomment(read_example()));
  CHECK(outcome.errors == std::vector<std::string>{});
  REQUIRE(outcome.config);
  CHECK(*outcome.config == defaults());
}

TEST_CASE("the example file shows every key once at its default, and no other") {
  const auto shown = entries(read_example());
  for (const auto& field : fields()) {
    CAPTURE(field.key);
    REQUIRE(shown.contains(field.key));
    CHECK(shown.at(field.key).value == field.print(Config{}));
  }
  CHECK(shown.size() == fields().size());
}

TEST_CASE("the example file says of every key what the parser accepts") {
  const auto shown = entries(read_example());
  for (const auto& field : fields()) {
    CAPTURE(field.key);
    REQUIRE(shown.contains(field.key));
    CHECK_THAT(shown.at(field.key).comment, Catch::Contains(" Accepts " + field.accepts + "."));
  }
}

TEST_CASE("the example file marks the keys that a reload may change, and no other") {
  const auto shown = entries(read_example());
  for (const auto& field : fields()) {
    CAPTURE(field.key);
    REQUIRE(shown.contains(field.key));
    const bool promised = shown.at(field.key).comment.find("(reload)") != std::string::npos;
    CHECK(field.reloadable == promised);
  }
}

}  // namespace pbox::config::example_test
