// The flight recorders of a box's pipelines. Each pipeline records into a ring of memory that is
// mapped from a file, so that a crash leaves the file behind. The rings can be copied while the
// pipelines write to them.
//
// Files in the directory, of which the newest kFilesKept of each kind are kept:
//   pipeline-N.ring     the ring of a running pipeline; deleted when pboxd stops normally
//   crash-TIME.flight   the rings that a crashed pboxd left; made when the next pboxd starts
//   late-TIME.flight    a copy made while a round was late
// The directory should be a tmpfs: on a disk, a pipeline that writes to a page waits while the
// kernel writes that page back.
//
// Control thread, except that ring(N) belongs to pipeline N while the recorder exists.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "config/config.h"

namespace pbox::pipelines {

class FlightRecorder {
 public:
  static constexpr size_t kFilesKept = 4;  // files kept of each kind

  // Makes one ring for each entry of `nodes`, on that NUMA node (kAnyNumaNode: on any). If the
  // directory cannot be used, the rings are in memory only and warning() says why.
  static Result<std::unique_ptr<FlightRecorder>> start(const config::Recorder& options,
                                                       const std::vector<int>& nodes);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  std::span<std::byte> ring(uint32_t pipeline) const;
  // Returns a copy of all rings, one image after the other.
  Result<std::string> copy() const;
  // Writes a copy of all rings to a new file of this kind, such as "late". Returns its path.
  Result<std::string> write(const std::string& kind) const;

  const std::string& warning() const { return warning_; }  // empty: none
  const std::string& crash_file() const {
    return crash_file_;
  }  // empty: the last pboxd stopped normally

 private:
  struct Ring;

  FlightRecorder() = default;
  Status open_directory(const std::string& directory);
  Status keep_crash();
  Status open_rings(uint64_t capacity, const std::vector<int>& nodes);
  Status open_ring(const std::string& name, uint64_t capacity, uint32_t pipeline, int node);
  Result<std::string> save(const std::string& kind, const std::string& bytes) const;
  void delete_old(const std::string& kind) const;

  std::string directory_;  // empty: rings are in memory only
  std::unique_ptr<Descriptor> lock_;
  std::vector<std::unique_ptr<Ring>> rings_;
  std::string warning_;
  std::string crash_file_;
};

}  // namespace pbox::pipelines
