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
  std::string help;     // what it does
  std::string accepts;  // "a whole number from 0 to 65535"
  bool reloadable;      // SIGHUP may change it in a running box
  std::function<std::string(const Config&)> print;
  // Writes the value `text` names. False: it names none that is accepted, and nothing was written.
  std::function<bool(Config&, const std::string& text)> set;
  // What is wrong with a text that `set` refuses, each fault with its remedy. Unset: `accepts` says
  // all there is to say.
  std::function<std::vector<std::string>(const std::string& text)> faults = {};
};

// In the order of the sections. Made once.
const std::vector<Field>& fields();

// The errors for a text that field.set refused.
std::vector<std::string> refusals(const Field& field, const std::string& text);

}  // namespace pbox::config
