// The one definition of every key: flags, file, help, print, reload and bounds all come from this
// table. Private to config/.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/config.h"

namespace pbox::config {

struct Field {
  std::string key;      // "control.port"
  std::string help;     // its meaning, for --help
  std::string accepts;  // "a whole number from 0 to 65535"
  bool reloadable;      // SIGHUP may change it in a running box
  std::function<std::string(const Config&)> print;
  // Writes the value that `text` names. Returns false, and writes nothing, if it is not accepted.
  std::function<bool(Config&, const std::string& text)> set;
  // Returns the faults of a text that `set` refuses, each with its remedy. Unset if `accepts` says
  // enough.
  std::function<std::vector<std::string>(const std::string& text)> faults = {};
};

// Returns all keys in the order of the sections. Built once.
const std::vector<Field>& fields();

// Returns the errors for a text that field.set refused.
std::vector<std::string> refusals(const Field& field, const std::string& text);

}  // namespace pbox::config
