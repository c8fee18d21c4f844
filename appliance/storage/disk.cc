#include "appliance/storage/disk.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <utility>

#include "nic/wire/crc32c.h"

namespace pbox::appliance {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

class FolderDisk : public Disk {
 public:
  FolderDisk(std::string folder, Descriptor names)
      : folder_(std::move(folder)), names_(std::move(names)) {}

  Result<std::optional<std::string>> read(const std::string& name) override {
    const Descriptor file(openat(names_.get(), name.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.ok() && errno == ENOENT) return std::optional<std::string>();
    if (!file.ok()) return failed("open", name);
    std::string bytes;
    char buffer[4096];
    for (;;) {
      const ssize_t count = ::read(file.get(), buffer, sizeof(buffer));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return failed("read", name);
      if (count == 0) return std::optional<std::string>(std::move(bytes));
      bytes.append(buffer, static_cast<size_t>(count));
    }
  }

  Status write(const std::string& name, const std::string& bytes) override {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    const Descriptor file(openat(names_.get(), name.c_str(), kFlags, 0640));
    if (!file.ok()) return failed("make", name);
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t count = ::write(file.get(), bytes.data() + done, bytes.size() - done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return failed("write", name);
      done += static_cast<size_t>(count);
    }
    return ok_status();
  }

  Status sync(const std::string& name) override {
    const Descriptor file(openat(names_.get(), name.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.ok() || fsync(file.get()) != 0) return failed("sync", name);
    return ok_status();
  }

  Status rename(const std::string& from, const std::string& to) override {
    if (renameat(names_.get(), from.c_str(), names_.get(), to.c_str()) != 0) {
      return failed("rename", from);
    }
    return ok_status();
  }

  Status sync_names() override {
    if (fsync(names_.get()) != 0) return failed("sync", "");
    return ok_status();
  }

 private:
  Error failed(const char* what, const std::string& name) const {
    const int error_number = errno;
    return system_error(
        "cannot " + std::string(what) + " " + folder_ + "/" + name + " ([cluster] state_directory)",
        error_number);
  }

  std::string folder_;
  Descriptor names_;  // holds the lock
};

class MemoryDisk : public Disk {
 public:
  Result<std::optional<std::string>> read(const std::string& name) override {
    const auto found = files_.find(name);
    if (found == files_.end()) return std::optional<std::string>();
    return std::optional<std::string>(found->second);
  }
  Status write(const std::string& name, const std::string& bytes) override {
    files_[name] = bytes;
    return ok_status();
  }
  Status sync(const std::string&) override { return ok_status(); }
  Status rename(const std::string& from, const std::string& to) override {
    files_[to] = files_[from];
    files_.erase(from);
    return ok_status();
  }
  Status sync_names() override { return ok_status(); }

 private:
  std::map<std::string, std::string> files_;
};

}  // namespace

Result<std::unique_ptr<Disk>> open_disk(const std::string& folder) {
  if (folder.empty()) return std::unique_ptr<Disk>(std::make_unique<MemoryDisk>());
  const std::string where = folder + " ([cluster] state_directory)";
  const std::string remedy =
      "; give this user write access there, or name another folder with --cluster.state_directory";
  if (mkdir(folder.c_str(), 0750) != 0 && errno != EEXIST) {
    Error error = system_error("cannot make " + where, errno);
    error.message += remedy;
    return error;
  }
  Descriptor names(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!names.ok() || faccessat(names.get(), ".", W_OK, AT_EACCESS) != 0) {
    Error error = system_error("cannot use " + where, errno);
    error.message += remedy;
    return error;
  }
  if (flock(names.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error{ErrorCode::kSystem, "another pboxd is using " + where +
                                         "; stop it, or give each its own folder with "
                                         "--cluster.state_directory"};
  }
  return std::unique_ptr<Disk>(new FolderDisk(folder, std::move(names)));
}

Status replace_file(Disk& disk, const std::string& name, const std::string& bytes) {
  const std::string fresh = name + ".new";
  if (const Status status = disk.write(fresh, bytes); !status) return status;
  if (const Status status = disk.sync(fresh); !status) return status;
  if (const Status status = disk.rename(fresh, name); !status) return status;
  return disk.sync_names();
}

std::string checksum(const std::string& text) {
  char digits[16];
  std::snprintf(digits, sizeof(digits), "%08x",
                wire::crc32c(0, reinterpret_cast<const std::byte*>(text.data()), text.size()));
  return digits;
}

}  // namespace pbox::appliance
