#include "base/check.h"
#include "config/fields.h"
#include "config/parse.h"

namespace pbox::config {
namespace {

std::string change(const Field& field, const Config& from, const Config& to) {
  return field.key + ": " + field.print(from) + " -> " + field.print(to);
}

}  // namespace

std::string print(const Config& config) {
  std::string text;
  std::string section;
  for (const auto& field : fields()) {
    const size_t dot = field.key.find('.');
    if (field.key.substr(0, dot) != section) {
      section = field.key.substr(0, dot);
      text += (text.empty() ? "[" : "\n[") + section + "]\n";
    }
    text += field.key.substr(dot + 1) + " = " + field.print(config) + '\n';
  }
  return text;
}

ReloadOutcome reload(const Config& running, const ParseOutcome& fresh) {
  ReloadOutcome outcome;
  outcome.errors = fresh.errors;
  if (!fresh.config) {
    if (outcome.errors.empty()) outcome.errors.push_back("the configuration could not be read");
    return outcome;
  }
  Config next = running;
  for (const auto& field : fields()) {
    const std::string value = field.print(*fresh.config);
    if (value == field.print(running)) continue;
    if (field.reloadable) {
      PBOX_CHECK(field.set(next, value));
      outcome.applied.push_back(change(field, running, *fresh.config));
    } else {
      outcome.needs_restart.push_back(change(field, running, *fresh.config));
    }
  }
  // The new file is consistent. The mixture with the keys that keep their values must be, too.
  outcome.errors = validate(next);
  if (outcome.errors.empty()) outcome.config = std::move(next);
  if (!outcome.config) outcome.applied.clear();
  return outcome;
}

}  // namespace pbox::config
