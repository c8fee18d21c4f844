// What the doctor says, check by check, as soon as it is known: lines for people, or one JSON
// object at the end. One thread.
#pragma once

#include <atomic>
#include <ostream>
#include <string>
#include <vector>

#include "appliance/preflight/preflight.h"

namespace pboxctl {

using pbox::appliance::Check;
using pbox::appliance::CheckLevel;

// Set by SIGINT and SIGTERM: whatever waits stops waiting, leaves its job and goes home.
extern std::atomic<bool> stop_requested;

// `text` in lines of at most `columns`, all but the first indented by `indent`; a longer word keeps
// a line of its own.
std::string wrap(const std::string& text, size_t indent, size_t columns = 100);

class Report {
 public:
  enum class Format { kText, kJson };
  // kText: checks go to `out`. kJson: the object goes to `out`, checks to `progress_out`.
  Report(Format format, std::ostream& out, std::ostream& progress_out);

  // A line above the checks, or between them.
  void say(const std::string& text);
  // What is being done now, for what may take over a second.
  void progress(const std::string& text);

  void add(const Check& check);
  void ok(const std::string& name, const std::string& finding);
  void warn(const std::string& name, const std::string& finding, const std::string& remedy);
  void fail(const std::string& name, const std::string& finding, const std::string& remedy);

  // Says what came out of it and returns the exit status: kFailed if a check failed.
  int finish();

 private:
  bool failed() const;
  std::ostream& people() { return format_ == Format::kText ? out_ : progress_out_; }

  Format format_;
  std::ostream& out_;
  std::ostream& progress_out_;
  std::vector<Check> checks_;
};

}  // namespace pboxctl
