// docs/configuration.md documents every key for operators. Its tables are compared with the parser.
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "config/fields.h"
#include "config/value.h"

namespace pbox::config {
namespace {

// A row of the page: | `key` | default | accepts | reload | meaning |
struct Row {
  std::string value;
  std::string reload;
  std::string meaning;
};

std::vector<std::string> cells(const std::string& line) {
  std::istringstream text(line);
  std::vector<std::string> list;
  for (std::string cell; std::getline(text, cell, '|');) list.push_back(trim(cell));
  return list;
}

std::string without_quotes(const std::string& cell) {
  if (cell == "(empty)") return "";
  return cell.size() > 1 && cell.front() == '`' ? cell.substr(1, cell.size() - 2) : cell;
}

std::map<std::string, Row> rows() {
  std::ifstream file(PBOX_CONFIGURATION_PAGE);
  REQUIRE(file);
  std::map<std::string, Row> found;
  std::string section;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) {
      const size_t open = line.find('[');
      section = open == std::string::npos ? "" : line.substr(open + 1, line.find(']') - open - 1);
    }
    if (section.empty() || !line.starts_with("| `")) continue;
    const auto row = cells(line);
    REQUIRE(row.size() == 6);  // the text before the first '|' is the first cell
    const std::string key = without_quotes(row[1]);
    INFO(key);
    CHECK(key.starts_with(section + "."));
    CHECK(found.count(key) == 0);
    found[key] = {without_quotes(row[2]), row[4], row[5]};
  }
  return found;
}

}  // namespace

TEST_CASE("the configuration page has every key once, at its default, and no other") {
  const auto shown = rows();
  for (const auto& field : fields()) {
    CAPTURE(field.key);
    REQUIRE(shown.contains(field.key));
    CHECK(shown.at(field.key).value == field.print(Config{}));
    CHECK(shown.at(field.key).reload == (field.reloadable ? "yes" : "no"));
    CHECK(shown.at(field.key).meaning.size() > 10);
  }
  CHECK(shown.size() == fields().size());
}

}  // namespace pbox::config
