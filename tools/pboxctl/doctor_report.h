// The doctor's report. Prints each check as soon as it is done, for people, or one JSON object at
// the end. Used by one thread.
#pragma once

#include <atomic>
#include <ostream>
#include <string>
#include <vector>

#include "appliance/preflight/preflight.h"

namespace pboxctl {

using pbox::preflight::Check;
using pbox::preflight::CheckLevel;

// Set by SIGINT and SIGTERM. A check that waits then stops waiting, leaves its job and returns.
extern std::atomic<bool> stop_requested;

// Returns `text` in lines of at most `columns`. All lines except the first are indented by
// `indent`. A longer word gets a line of its own.
std::string wrap(const std::string& text, size_t indent, size_t columns = 100);

class Report {
 public:
  enum class Format { kText, kJson };
  // With kText, checks go to `out`. With kJson, the object goes to `out` and checks to
  // `progress_out`.
  Report(Format format, std::ostream& out, std::ostream& progress_out);

  // Prints a line above or between the checks.
  void say(const std::string& text);
  // Prints the current activity, if it may take more than a second.
  void progress(const std::string& text);

  void add(const Check& check);
  void ok(const std::string& name, const std::string& finding);
  void warn(const std::string& name, const std::string& finding, const std::string& remedy);
  void fail(const std::string& name, const std::string& finding, const std::string& remedy);

  // Prints the verdict and returns the exit status: kFailed if a check failed.
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
