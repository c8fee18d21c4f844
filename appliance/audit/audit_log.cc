#include "appliance/audit/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace pbox::audit {
namespace {

constexpr char kStandardError[] = "stderr";
constexpr size_t kTextBytesMax = 512;  // longest text in a line
constexpr mode_t kMode = 0600;
// If records of a kind were left out, and no line of that kind was written for this long, a line is
// written that says how many were left out.
constexpr uint64_t kSummaryNs = 10 * kNanosPerSecond;

struct KindRow {
  Kind kind;
  const char* name;
  LineBound bound;
};

// Joins come in thousands when a cluster starts.
constexpr LineBound kAllowed = {.burst = 16'384, .per_second = 1'000};
// Strangers can cause these records, so each of these kinds writes at most 100,000 lines a day.
constexpr LineBound kRefused = {.burst = 100, .per_second = 1};

constexpr KindRow kKinds[] = {
    {Kind::kJoin, "join", kAllowed},
    {Kind::kJoinRefused, "join_refused", kRefused},
    {Kind::kMessageDenied, "message_denied", kRefused},
    {Kind::kHandshakeRefused, "handshake_refused", kRefused},
    {Kind::kAdmin, "admin", kAllowed},
    {Kind::kAdminRefused, "admin_refused", kRefused},
    {Kind::kCut, "cut", kAllowed},
    {Kind::kState, "state", kAllowed},
    {Kind::kDrain, "drain", kAllowed},
};
static_assert(std::size(kKinds) == kKindCount);

const KindRow& row_of(Kind kind) {
  const KindRow& row = kKinds[static_cast<size_t>(kind)];
  PBOX_CHECK(row.kind == kind);
  return row;
}

// Returns a time such as "2026-11-25T09:30:00.123Z".
std::string utc_text(int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  tm parts{};
  PBOX_CHECK(gmtime_r(&seconds, &parts) != nullptr);
  std::array<char, 64> text;
  const size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  PBOX_CHECK(length > 0);
  std::snprintf(text.data() + length, text.size() - length, ".%03dZ",
                static_cast<int>(unix_ms % 1000));
  return text.data();
}

int64_t unix_ms_now() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Error failed(const std::string& path, const std::string& what) {
  return {ErrorCode::kSystem, "log.audit = " + path + ": " + what +
                                  "; name a file in a folder that exists and belongs to the user "
                                  "of pboxd"};
}

}  // namespace

LineBound bound_of(Kind kind) {
  return row_of(kind).bound;
}

const char* to_string(Kind kind) {
  return row_of(kind).name;
}

std::string to_line(const Record& record, int64_t unix_ms, uint64_t suppressed, uint64_t lost) {
  nlohmann::ordered_json line = {{"time", utc_text(unix_ms)}, {"event", to_string(record.kind)}};
  const auto add = [&line](const char* key, const std::string& text) {
    if (!text.empty()) line[key] = text.substr(0, kTextBytesMax);
  };
  const auto add_number = [&line](const char* key, const auto& number) {
    if (number) line[key] = *number;
  };
  add("who", record.who);
  add("address", record.address);
  add("job", record.job);
  add_number("part", record.part);
  add_number("rank", record.rank);
  add_number("epoch", record.epoch);
  add_number("snapshot", record.snapshot);
  add("box", record.box);
  add("request", record.request);
  add("body", record.body);
  add_number("status", record.status);
  add("outcome", record.outcome);
  add("reason", record.reason);
  if (suppressed > 0) line["suppressed"] = suppressed;
  if (lost > 0) line["lost"] = lost;
  return line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

AuditLog::AuditLog(std::string path, OnState on_state)
    : path_(std::move(path)), on_state_(std::move(on_state)) {
  for (const KindRow& row : kKinds) {
    windows_[static_cast<size_t>(row.kind)].tokens = row.bound.burst;
  }
}

Result<std::unique_ptr<AuditLog>> AuditLog::open(const std::string& target, OnState on_state) {
  const bool is_file = target != kStandardError;
  std::unique_ptr<AuditLog> log(new AuditLog(is_file ? target : "", std::move(on_state)));
  if (const Status opened = log->open_file(); !opened) return opened.error();
  return log;
}

AuditLog::~AuditLog() {
  for (const KindRow& row : kKinds) {
    if (windows_[static_cast<size_t>(row.kind)].suppressed > 0) write_line({.kind = row.kind});
  }
}

// O_NONBLOCK: opening a named pipe must not wait for its other end. The pipe is then refused, like
// every file that is not a regular one.
Status AuditLog::open_file() {
  file_.reset();
  if (path_.empty()) {
    file_ = std::make_unique<Descriptor>(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
    if (file_->ok()) return ok_status();
    file_.reset();
    return system_error("log.audit = stderr", errno);
  }
  constexpr int kFlags =
      O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  auto file = std::make_unique<Descriptor>(::open(path_.c_str(), kFlags, kMode));
  if (!file->ok()) return failed(path_, std::strerror(errno));
  struct stat found {};
  if (fstat(file->get(), &found) != 0) return failed(path_, std::strerror(errno));
  if (!S_ISREG(found.st_mode)) return failed(path_, "it is not a regular file");
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return failed(path_, "users other than its owner can write to it; run chmod 600");
  }
  char last = '\n';
  is_torn_ =
      found.st_size > 0 && pread(file->get(), &last, 1, found.st_size - 1) == 1 && last != '\n';
  file_ = std::move(file);
  return ok_status();
}

bool AuditLog::take_token(Kind kind, uint64_t now_ns) {
  const LineBound bound = bound_of(kind);
  Window& window = windows_[static_cast<size_t>(kind)];
  const uint64_t passed_ns = now_ns - std::min(now_ns, window.refilled_ns);
  window.tokens = std::min<double>(
      bound.burst, window.tokens + static_cast<double>(passed_ns) / 1e9 * bound.per_second);
  window.refilled_ns = now_ns;
  if (window.tokens < 1) return false;
  window.tokens -= 1;
  window.written_ns = now_ns;
  return true;
}

void AuditLog::write(const Record& record, uint64_t now_ns) {
  if (take_token(record.kind, now_ns)) return write_line(record);
  ++windows_[static_cast<size_t>(record.kind)].suppressed;
}

void AuditLog::write_line(const Record& record) {
  Window& window = windows_[static_cast<size_t>(record.kind)];
  if (file_ == nullptr) return note_lost("the file cannot be opened");
  std::string line = to_line(record, unix_ms_now(), window.suppressed, lost_untold_);
  line += '\n';
  if (is_torn_) line.insert(line.begin(), '\n');
  ssize_t written = 0;
  do {
    written = ::write(file_->get(), line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written < 0) return note_lost(std::strerror(errno));
  if (static_cast<size_t>(written) < line.size()) {
    is_torn_ = true;
    return note_lost("the disk is full");
  }
  is_torn_ = false;
  window.suppressed = 0;
  if (lost_untold_ == 0) return;
  on_state_(false,
            "the audit log is written again; " + std::to_string(lost_untold_) + " lines were lost");
  lost_untold_ = 0;
}

void AuditLog::note_lost(const std::string& why) {
  ++lost_;
  if (++lost_untold_ > 1) return;
  on_state_(true, "log.audit = " + (path_.empty() ? std::string(kStandardError) : path_) + ": " +
                      why + "; events are not recorded until it can be written again");
}

void AuditLog::reopen() {
  if (path_.empty()) return;
  if (const Status opened = open_file(); !opened) on_state_(true, opened.error().message);
}

void AuditLog::on_second(uint64_t now_ns) {
  struct stat found {};
  const bool is_gone = !path_.empty() && (file_ == nullptr || fstat(file_->get(), &found) != 0 ||
                                          found.st_nlink == 0);
  // An error is reported with the first line that is lost.
  if (is_gone) static_cast<void>(open_file());
  for (const KindRow& row : kKinds) {
    const Window& window = windows_[static_cast<size_t>(row.kind)];
    const bool is_due =
        window.suppressed > 0 && now_ns - std::min(now_ns, window.written_ns) >= kSummaryNs;
    if (is_due && file_ != nullptr && take_token(row.kind, now_ns)) write_line({.kind = row.kind});
  }
}

}  // namespace pbox::audit
