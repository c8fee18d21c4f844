#include "tools/pboxctl/doctor_report.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tools/pboxctl/commands.h"

namespace pboxctl {
namespace {

// Columns of "  FAIL  receive-buffer  finding". The finding and its continuation start at kIndent.
constexpr size_t kLevelColumns = 4;
constexpr size_t kNameColumns = 15;
constexpr size_t kIndent = 2 + kLevelColumns + 2 + kNameColumns + 1;

// Problems are in capitals, so that they stand out without colours.
const char* shown(CheckLevel level) {
  switch (level) {
    case CheckLevel::kOk: return "ok";
    case CheckLevel::kWarn: return "WARN";
    case CheckLevel::kFail: return "FAIL";
  }
  return "?";
}

size_t count(const std::vector<Check>& checks, CheckLevel level) {
  return static_cast<size_t>(std::count_if(
      checks.begin(), checks.end(), [&](const Check& check) { return check.level == level; }));
}

std::string names(const std::vector<Check>& checks, CheckLevel level) {
  std::string all;
  for (const Check& check : checks) {
    if (check.level == level) all += (all.empty() ? "" : ", ") + check.name;
  }
  return all;
}

}  // namespace

std::atomic<bool> stop_requested = false;

std::string wrap(const std::string& text, size_t indent, size_t columns) {
  std::istringstream words(text);
  std::string lines;
  size_t column = indent;
  for (std::string word; words >> word;) {
    if (column > indent && column + 1 + word.size() > columns) {
      lines += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      lines += ' ';
      ++column;
    }
    lines += word;
    column += word.size();
  }
  return lines;
}

Report::Report(Format format, std::ostream& out, std::ostream& progress_out)
    : format_(format), out_(out), progress_out_(progress_out) {}

void Report::say(const std::string& text) {
  people() << (checks_.empty() ? "" : "\n") << wrap(text, 0) << std::endl;
}

void Report::progress(const std::string& text) {
  progress_out_ << "  ...   " << wrap(text, 8) << std::endl;
}

void Report::add(const Check& check) {
  people() << "  " << std::left << std::setw(kLevelColumns) << shown(check.level) << "  "
           << std::setw(kNameColumns) << check.name << ' ' << wrap(check.finding, kIndent) << '\n';
  if (!check.remedy.empty()) {
    people() << std::string(kIndent, ' ') << "-> " << wrap(check.remedy, kIndent + 3) << '\n';
  }
  people() << std::flush;
  checks_.push_back(check);
}

void Report::ok(const std::string& name, const std::string& finding) {
  add({name, CheckLevel::kOk, finding, ""});
}

void Report::warn(const std::string& name, const std::string& finding, const std::string& remedy) {
  add({name, CheckLevel::kWarn, finding, remedy});
}

void Report::fail(const std::string& name, const std::string& finding, const std::string& remedy) {
  add({name, CheckLevel::kFail, finding, remedy});
}

bool Report::failed() const {
  return count(checks_, CheckLevel::kFail) > 0;
}

int Report::finish() {
  if (format_ == Format::kJson) {
    auto list = nlohmann::ordered_json::array();
    for (const Check& check : checks_) {
      list.push_back({{"name", check.name},
                      {"level", pbox::preflight::to_string(check.level)},
                      {"finding", check.finding},
                      {"remedy", check.remedy}});
    }
    // Another program on that port may have sent bytes that are not UTF-8.
    out_ << nlohmann::ordered_json{{"ok", !failed()}, {"checks", list}}.dump(
                2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
         << std::endl;
  }
  const std::string failures = names(checks_, CheckLevel::kFail);
  const std::string warnings = names(checks_, CheckLevel::kWarn);
  std::string verdict = std::to_string(checks_.size()) + " checks: ";
  if (failures.empty()) {
    verdict += warnings.empty() ? "all passed." : "none failed.";
  } else {
    verdict += "FAILED " + failures + ".";
  }
  if (!warnings.empty()) verdict += " Warnings: " + warnings + ".";
  say(verdict);
  return failed() ? kFailed : kDone;
}

}  // namespace pboxctl
