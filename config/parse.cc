#include "config/parse.h"

#include <unistd.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cerrno>
#include <cstdio>
#include <map>
#include <sstream>

#include "base/result.h"
#include "config/fields.h"
#include "config/suggest.h"
#include "config/value.h"

namespace pbox::config {
namespace {

namespace options = boost::program_options;

// The text of a value, and its source for messages. Boost only splits the input into texts and does
// not convert them: it would stop at the first bad value, and the box reports all.
struct Given {
  std::string source;  // "flag", the path of the file, or "text"
  std::string text;
};
using GivenByKey = std::map<std::string, Given>;

options::options_description setting_options() {
  options::options_description description(
      "Settings, written in the file as key = value below [section]");
  for (const auto& field : fields()) {
    description.add_options()(field.key.c_str(), options::value<std::string>()->value_name("VALUE"),
                              field.help.c_str());
  }
  return description;
}

options::options_description action_options() {
  options::options_description description("Options");
  const std::string config_help =
      std::string("read FILE; default: ") + kDefaultPath + " if it exists";
  description.add_options()("config", options::value<std::string>()->value_name("FILE"),
                            config_help.c_str());
  description.add_options()("check-config", "check the configuration, print its faults, and exit");
  description.add_options()("print-config", "print the configuration in force, and exit");
  description.add_options()("help,h", "print this text, and exit");
  description.add_options()("version", "print the version, and exit");
  return description;
}

std::string unknown_key(const std::string& source, const std::string& key) {
  const std::string nearest = nearest_key(key);
  return source + ": unknown key " + key +
         (nearest.empty() ? "; --help lists all" : "; did you mean " + nearest + "?");
}

// Takes each option once. A second value for a key is an error, because the box cannot know which
// one counts.
void take(const options::parsed_options& parsed, const std::string& source, GivenByKey& given,
          std::vector<std::string>& errors) {
  for (const auto& option : parsed.options) {
    if (option.position_key >= 0) {
      for (const auto& word : option.value) {
        errors.push_back(source + ": unexpected argument " + word + "; settings are --key=value");
      }
    } else if (option.unregistered) {
      errors.push_back(unknown_key(source, option.string_key));
    } else {
      const std::string text = option.value.empty() ? std::string() : trim(option.value[0]);
      if (!given.emplace(option.string_key, Given{source, text}).second) {
        errors.push_back(source + ": " + option.string_key + " = " + text +
                         " is given twice; remove one");
      }
    }
  }
}

// Blanks the lines that are neither section, key = value nor comment, and reports them all. Boost
// would stop at the first.
std::string without_bad_lines(const std::string& text, const std::string& source,
                              std::vector<std::string>& errors) {
  std::istringstream lines(text);
  std::string kept;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string content = trim(line.substr(0, line.find('#')));
    const bool is_section = !content.empty() && content.front() == '[' && content.back() == ']';
    if (content.empty() || is_section || content.find('=') != std::string::npos) {
      kept += line;
    } else {
      errors.push_back(source + ": line " + std::to_string(number) + ": " + content +
                       " is not understood; write [section], key = value or # comment");
    }
    kept += '\n';
  }
  return kept;
}

void read_text(const std::string& text, const std::string& source, GivenByKey& given,
               std::vector<std::string>& errors) {
  std::istringstream stream(without_bad_lines(text, source, errors));
  try {
    take(options::parse_config_file(stream, setting_options(), true), source, given, errors);
  } catch (const options::error& error) {
    errors.push_back(source + ": " + error.what());
  }
}

Result<std::string> text_of(const std::string& path) {
  FILE* file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return system_error("cannot open", errno);
  std::string text;
  char block[4096];
  for (size_t bytes; (bytes = std::fread(block, 1, sizeof(block), file)) > 0;) {
    text.append(block, bytes);
  }
  // If the path is a folder, fopen() succeeds and the first read fails.
  const int failure = std::ferror(file) != 0 ? errno : 0;
  std::fclose(file);
  if (failure != 0) return system_error("cannot read", failure);
  return text;
}

void read_file(const std::string& path, GivenByKey& given, std::vector<std::string>& errors) {
  const auto text = text_of(path);
  if (text) {
    read_text(*text, path, given, errors);
  } else {
    errors.push_back("config = " + path + ": " + text.error().message +
                     "; name a file that pboxd can read");
  }
}

// Adds the keys whose value was not accepted to `refused`.
void apply(const GivenByKey& given, Config& config, std::vector<std::string>& refused,
           std::vector<std::string>& errors) {
  for (const auto& field : fields()) {
    const auto found = given.find(field.key);
    if (found == given.end() || field.set(config, found->second.text)) continue;
    refused.push_back(field.key);
    for (const auto& error : refusals(field, found->second.text)) {
      errors.push_back(found->second.source + ": " + error);
    }
  }
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "pbox";
  return name;
}

// Applies `file` before `flags`, so that a flag wins over the file.
ParseOutcome finish(ParseOutcome outcome, const GivenByKey& file, const GivenByKey& flags) {
  Config config;
  std::vector<std::string> refused;
  apply(file, config, refused, outcome.errors);
  apply(flags, config, refused, outcome.errors);
  if (config.box.name.empty()) config.box.name = host_name();
  for (auto& error : validate(config)) {
    // For a refused key validate() would judge the default, which the operator did not choose.
    const bool is_moot = std::any_of(refused.begin(), refused.end(), [&](const std::string& key) {
      return error.starts_with(key + " ");
    });
    if (!is_moot) outcome.errors.push_back(std::move(error));
  }
  if (outcome.errors.empty()) outcome.config = std::move(config);
  return outcome;
}

Action action_of(const GivenByKey& flags) {
  if (flags.contains("help")) return Action::kHelp;
  if (flags.contains("version")) return Action::kVersion;
  if (flags.contains("check-config")) return Action::kCheck;
  if (flags.contains("print-config")) return Action::kPrint;
  return Action::kRun;
}

}  // namespace

ParseOutcome parse(int argc, const char* const* argv) {
  namespace style = options::command_line_style;
  ParseOutcome outcome;
  GivenByKey flags;
  try {
    options::options_description all = action_options();
    all.add(setting_options());
    // Abbreviations are refused: `--data.p` could mean data.port today and be ambiguous tomorrow.
    const auto parsed = options::command_line_parser(argc, argv)
                            .options(all)
                            .style(style::default_style & ~style::allow_guessing)
                            .allow_unregistered()
                            .run();
    take(parsed, "flag", flags, outcome.errors);
  } catch (const options::error& error) {
    outcome.errors.push_back(std::string("flag: ") + error.what() + "; --help lists all");
  }
  outcome.action = action_of(flags);
  if (outcome.action == Action::kHelp || outcome.action == Action::kVersion) return outcome;

  GivenByKey file;
  const auto named = flags.find("config");
  if (named != flags.end()) {
    outcome.file = named->second.text;
  } else if (access(kDefaultPath, F_OK) == 0) {
    outcome.file = kDefaultPath;
  }
  if (!outcome.file.empty() || named != flags.end()) read_file(outcome.file, file, outcome.errors);
  return finish(std::move(outcome), file, flags);
}

ParseOutcome parse_file(const std::string& path) {
  ParseOutcome outcome;
  GivenByKey file;
  outcome.file = path;
  read_file(path, file, outcome.errors);
  return finish(std::move(outcome), file, {});
}

ParseOutcome parse_text(const std::string& text) {
  ParseOutcome outcome;
  GivenByKey file;
  read_text(text, "text", file, outcome.errors);
  return finish(std::move(outcome), file, {});
}

std::string usage(const std::string& program) {
  std::ostringstream text;
  text << "Usage: " << program << " [options] [--section.key=value ...]\n\n"
       << action_options() << '\n'
       << setting_options();
  return text.str();
}

}  // namespace pbox::config
