// The flight recorders of a box's pipelines: their memory, a file each, which a crash leaves
// behind; and what is copied out of them while they are written.
//
// Files in the directory, of which only the newest kFilesKept of a kind are kept:
//   pipeline-N.ring     written now, by the pipelines themselves; gone when pboxd ends in order
//   crash-TIME.flight   what a pboxd that did not had written last; made when the next one starts
//   late-TIME.flight    made while a round was late
// It should be in memory (tmpfs): on a disk the kernel's writing back stops a pipeline from writing
// to a page for as long as that takes.
//
// Control thread; what a ring() points to belongs to one pipeline, until this goes.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/config.h"

namespace pbox::appliance {

class FlightRecorder {
 public:
  static constexpr size_t kFilesKept = 4;  // of each kind

  // One ring for each of these NUMA nodes (kAnyNumaNode: wherever). Where the directory cannot be
  // used the rings are in memory alone, and warning() says why.
  static Result<std::unique_ptr<FlightRecorder>> start(const config::Recorder& options,
                                                       const std::vector<int>& nodes);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  std::span<std::byte> ring(uint32_t pipeline) const;
  // All rings as they are now, one image after the other.
  Result<std::string> copy() const;
  // The same into a file of that kind ("late"); its path.
  Result<std::string> write(const std::string& kind) const;

  const std::string& warning() const { return warning_; }        // empty: none
  const std::string& crash_file() const { return crash_file_; }  // empty: the last pboxd ended well

 private:
  class File;
  struct Ring;

  FlightRecorder() = default;
  Status open_directory(const std::string& directory);
  Status keep_crash();
  Status open_rings(uint64_t capacity, const std::vector<int>& nodes);
  Status open_ring(const std::string& name, uint64_t capacity, uint32_t pipeline, int node);
  Result<std::string> save(const std::string& kind, const std::string& bytes) const;
  void delete_old(const std::string& kind) const;

  std::string directory_;  // empty: memory alone
  std::unique_ptr<File> lock_;
  std::vector<std::unique_ptr<Ring>> rings_;
  std::string warning_;
  std::string crash_file_;
};

}  // namespace pbox::appliance
