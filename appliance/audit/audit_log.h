// The audit log: one JSON object a line for each record, in a file or on standard error.
//
// Each kind of record has a bound of its own on the lines it may write, so that a flood of refusals
// fills no disk and displaces no record of what was allowed. The first line after records that were
// left out says how many there were. Runs on the control thread, which writes the lines itself, so
// the file should be on a local disk, where a write takes microseconds. Lines that cannot be
// written are lost and counted. A file that could not be opened, or was deleted, is opened again
// within a second.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "appliance/audit/record.h"
#include "base/descriptor.h"
#include "base/result.h"

namespace pbox::audit {

// Bounds on the lines of one kind: `burst` at once, and `per_second` each second in the long run.
struct LineBound {
  uint32_t burst;
  uint32_t per_second;
};
LineBound bound_of(Kind kind);

// Returns the stable name of the kind: "join", "join_refused", ...
const char* to_string(Kind kind);

// Returns the line of a record, without a newline. `unix_ms`: the time of the record. `suppressed`:
// number of records of this kind that were left out before it. `lost`: number of lines of any kind
// that could not be written before it. Long texts are cut short.
std::string to_line(const Record& record, int64_t unix_ms, uint64_t suppressed, uint64_t lost);

class AuditLog {
 public:
  // Called when lines are lost, and when they are written again.
  using OnState = std::function<void(bool is_lost, const std::string& text)>;

  // `target`: a path, or "stderr". A file that does not exist is created, and only its owner may
  // read and write it. Errors name the path and the remedy.
  static Result<std::unique_ptr<AuditLog>> open(const std::string& target, OnState on_state);
  // Writes how many records have been left out.
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  void write(const Record& record, uint64_t now_ns);
  // Opens the path again, after the file was renamed.
  void reopen();
  // Call it about once a second. Writes how many records were left out, for kinds that have written
  // no line for a while. Opens the file again if it was deleted or could not be opened.
  void on_second(uint64_t now_ns);
  // Returns the number of lines that could not be written.
  uint64_t lost() const { return lost_; }

 private:
  struct Window {
    double tokens = 0;  // lines that may be written now
    uint64_t refilled_ns = 0;
    uint64_t suppressed = 0;  // since the last line
    uint64_t written_ns = 0;  // time of the last line
  };

  AuditLog(std::string path, OnState on_state);
  Status open_file();
  // Returns whether the kind may write a line now; if so, takes one of its tokens.
  bool take_token(Kind kind, uint64_t now_ns);
  void write_line(const Record& record);
  void note_lost(const std::string& why);

  std::string path_;  // empty for standard error
  OnState on_state_;
  std::unique_ptr<Descriptor> file_;  // null if it cannot be opened
  std::array<Window, kKindCount> windows_;
  bool is_torn_ = false;  // the file ends within a line
  uint64_t lost_ = 0;
  uint64_t lost_untold_ = 0;  // since the last line
};

}  // namespace pbox::audit
