#include "appliance/pipelines/flight_recorder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>

#include "appliance/storage/replace_file.h"
#include "base/clock.h"
#include "base/numa_arena.h"
#include "pipeline/observe/flight_image.h"

namespace pbox::pipelines {
namespace {

namespace fs = std::filesystem;

// Other users may be able to write to the directory: a symbolic link there must not be followed.
constexpr int kCreateFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
constexpr const char* kRingSuffix = ".ring";
constexpr const char* kFileSuffix = ".flight";

uint64_t unix_ns() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

// Returns a time like "20261122T101500.123Z". Later times sort later.
std::string time_stamp() {
  const uint64_t now_ns = unix_ns();
  const auto seconds = static_cast<time_t>(now_ns / kNanosPerSecond);
  tm parts{};
  gmtime_r(&seconds, &parts);
  char text[64];
  const size_t length = std::strftime(text, sizeof(text), "%Y%m%dT%H%M%S", &parts);
  std::snprintf(text + length, sizeof(text) - length, ".%03uZ",
                static_cast<unsigned>(now_ns % kNanosPerSecond / kNanosPerMilli));
  return text;
}

// Returns the names in the folder with this prefix and suffix, in ascending order.
std::vector<std::string> names_of(const std::string& folder, const std::string& prefix,
                                  const std::string& suffix) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::string name = at->path().filename();
    if (name.starts_with(prefix) && name.ends_with(suffix)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool read_all(int fd, uint64_t offset, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t count = pread(fd, to.data(), to.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    to = to.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return true;
}

Result<std::string> copy_of(int fd) {
  return pipeline::copy_flight_image(
      [fd](uint64_t offset, std::span<std::byte> to) { return read_all(fd, offset, to); });
}

}  // namespace

struct FlightRecorder::Ring {
  explicit Ring(int fd) : file(fd) {}
  ~Ring() {
    if (!memory.empty()) munmap(memory.data(), memory.size());
    if (!path.empty()) unlink(path.c_str());
  }
  Descriptor file;
  std::string path;  // empty: in memory only
  std::span<std::byte> memory;
};

Result<std::unique_ptr<FlightRecorder>> FlightRecorder::start(const config::Recorder& options,
                                                              const std::vector<int>& nodes) {
  std::unique_ptr<FlightRecorder> recorder(new FlightRecorder);
  const uint64_t capacity = std::bit_ceil(uint64_t{options.records});
  if (!options.directory.empty()) {
    Status status = recorder->open_directory(options.directory);
    if (status) status = recorder->keep_crash();
    if (status) status = recorder->open_rings(capacity, nodes);
    if (status) return recorder;
    recorder->warning_ = status.error().message +
                         "; packets are recorded in memory only, and a crash leaves no record. Set "
                         "recorder.directory to a writable folder that no other pboxd uses";
    recorder->rings_.clear();
    recorder->lock_.reset();
    recorder->directory_.clear();
  }
  if (const Status status = recorder->open_rings(capacity, nodes); !status) return status.error();
  return recorder;
}

FlightRecorder::~FlightRecorder() = default;

// Does not make the folder: systemd or the operator does, since its file system decides which
// memory the rings take.
Status FlightRecorder::open_directory(const std::string& directory) {
  const std::string path = directory + "/lock";
  lock_ = std::make_unique<Descriptor>(open(path.c_str(), kCreateFlags, 0640));
  if (!lock_->ok()) return system_error("cannot make " + path, errno);
  if (flock(lock_->get(), LOCK_EX | LOCK_NB) != 0) {
    return Error{ErrorCode::kSystem, "another pboxd uses " + directory};
  }
  directory_ = directory;
  return ok_status();
}

Status FlightRecorder::keep_crash() {
  const std::string torn_suffix =
      std::string(kFileSuffix) + storage::FileReplacement::kTemporarySuffix;
  for (const std::string& name : names_of(directory_, "", torn_suffix)) {
    unlink((directory_ + "/" + name).c_str());
  }
  std::string bytes;
  for (const std::string& name : names_of(directory_, "pipeline-", kRingSuffix)) {
    const std::string path = directory_ + "/" + name;
    const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    const auto image = copy_of(file.get());
    if (image) bytes += *image;
    // Without an image, the ring has no valid head yet, or another release wrote it.
    if (!image) warning_ = path + " is deleted unread: " + image.error().message;
    unlink(path.c_str());
  }
  if (bytes.empty()) return ok_status();
  auto kept = save("crash", bytes);
  if (!kept) return kept.error();
  crash_file_ = std::move(*kept);
  return ok_status();
}

Status FlightRecorder::open_rings(uint64_t capacity, const std::vector<int>& nodes) {
  for (uint32_t index = 0; index < nodes.size(); ++index) {
    const std::string name = "pipeline-" + std::to_string(index) + kRingSuffix;
    if (const Status status = open_ring(name, capacity, index, nodes[index]); !status) {
      return status;
    }
  }
  return ok_status();
}

// Allocates every page now, so that a full tmpfs is an error here and not a SIGBUS later.
Status FlightRecorder::open_ring(const std::string& name, uint64_t capacity, uint32_t pipeline,
                                 int node) {
  const std::string path = directory_ + "/" + name;
  const bool in_memory = directory_.empty();
  auto ring = std::make_unique<Ring>(in_memory ? memfd_create(name.c_str(), MFD_CLOEXEC)
                                               : open(path.c_str(), kCreateFlags | O_TRUNC, 0640));
  const int fd = ring->file.get();
  if (fd < 0) return system_error("cannot make " + path, errno);
  if (!in_memory) ring->path = path;
  const size_t bytes = pipeline::flight_image_bytes(capacity);
  const auto failed = [&](int error) {
    return system_error(
        "no room for the " + std::to_string(bytes) + " bytes of a flight recorder in " + path,
        error);
  };
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return failed(errno);
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return failed(errno);
  ring->memory = {static_cast<std::byte*>(address), bytes};
  if (node != kAnyNumaNode) {
    if (const Status bound = bind_to_node(address, bytes, node); !bound) return bound;
  }
  if (const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes)); error != 0) {
    return failed(error);
  }
  // Makes a writable page table entry for each page, so that the pipeline takes no page fault.
  madvise(address, bytes, MADV_POPULATE_WRITE);
  pipeline::make_flight_head({.pipeline_index = pipeline,
                              .capacity = capacity,
                              .begun_unix_ns = unix_ns(),
                              .begun_ns = monotonic_ns()},
                             ring->memory.data());
  rings_.push_back(std::move(ring));
  return ok_status();
}

std::span<std::byte> FlightRecorder::ring(uint32_t pipeline) const {
  return rings_[pipeline]->memory;
}

Result<std::string> FlightRecorder::copy() const {
  std::string bytes;
  for (const auto& ring : rings_) {
    const auto image = copy_of(ring->file.get());
    if (!image) return image.error();
    bytes += *image;
  }
  return bytes;
}

Result<std::string> FlightRecorder::write(const std::string& kind) const {
  if (directory_.empty()) {
    return Error{ErrorCode::kUnavailable, "recorder.directory is none, or cannot be used"};
  }
  const auto bytes = copy();
  if (!bytes) return bytes.error();
  return save(kind, *bytes);
}

Result<std::string> FlightRecorder::save(const std::string& kind, const std::string& bytes) const {
  const std::string path = directory_ + "/" + kind + "-" + time_stamp() + kFileSuffix;
  if (const Status written = storage::replace_file(path, bytes); !written) return written.error();
  delete_old(kind);
  return path;
}

void FlightRecorder::delete_old(const std::string& kind) const {
  const auto names = names_of(directory_, kind + "-", kFileSuffix);
  for (size_t index = 0; index + kFilesKept < names.size(); ++index) {
    unlink((directory_ + "/" + names[index]).c_str());
  }
}

}  // namespace pbox::pipelines
