#include "appliance/storage/disk.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/descriptor.h"
#include "nic/wire/crc32c.h"

namespace pbox::storage {
namespace {

constexpr char kStateFolderKey[] = " ([cluster] state_directory)";

class FolderFile : public OutputFile {
 public:
  FolderFile(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}

  Status write(const void* data, size_t bytes) override {
    const auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t count = ::write(file_.get(), from, bytes);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return system_error("cannot write " + path_, errno);
      from += count;
      bytes -= static_cast<size_t>(count);
    }
    return ok_status();
  }

  Status sync() override {
    if (fsync(file_.get()) != 0) return system_error("cannot sync " + path_, errno);
    return ok_status();
  }

 private:
  std::string path_;  // for error messages
  Descriptor file_;
};

class FolderDisk : public Disk {
 public:
  // `hint` follows the path in error messages.
  FolderDisk(std::string folder, Descriptor names, std::string hint)
      : folder_(std::move(folder)), hint_(std::move(hint)), names_(std::move(names)) {
    PBOX_CHECK(names_.ok());
  }

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

  // O_NOFOLLOW: another user who may write to the folder must not be able to make this process
  // write elsewhere.
  Result<std::unique_ptr<OutputFile>> create(const std::string& name) override {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
    Descriptor file(openat(names_.get(), name.c_str(), kFlags, 0640));
    if (!file.ok()) return failed("create", name);
    return std::unique_ptr<OutputFile>(
        std::make_unique<FolderFile>(path_of(name), std::move(file)));
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

  void remove(const std::string& name) override { unlinkat(names_.get(), name.c_str(), 0); }

 private:
  std::string path_of(const std::string& name) const { return folder_ + "/" + name + hint_; }
  Error failed(const char* what, const std::string& name) const {
    const int error_number = errno;
    return system_error("cannot " + std::string(what) + " " + path_of(name), error_number);
  }

  std::string folder_;
  std::string hint_;
  Descriptor names_;  // the folder; holds the lock of a state folder
};

class MemoryFile : public OutputFile {
 public:
  explicit MemoryFile(std::shared_ptr<std::string> bytes) : bytes_(std::move(bytes)) {}
  Status write(const void* data, size_t bytes) override {
    bytes_->append(static_cast<const char*>(data), bytes);
    return ok_status();
  }
  Status sync() override { return ok_status(); }

 private:
  std::shared_ptr<std::string> bytes_;
};

class MemoryDisk : public Disk {
 public:
  Result<std::optional<std::string>> read(const std::string& name) override {
    const auto found = files_.find(name);
    if (found == files_.end()) return std::optional<std::string>();
    return std::optional<std::string>(*found->second);
  }
  Result<std::unique_ptr<OutputFile>> create(const std::string& name) override {
    const auto bytes = files_[name] = std::make_shared<std::string>();
    return std::unique_ptr<OutputFile>(std::make_unique<MemoryFile>(bytes));
  }
  Status rename(const std::string& from, const std::string& to) override {
    const auto found = files_.find(from);
    PBOX_CHECK(found != files_.end());
    files_[to] = found->second;
    files_.erase(from);
    return ok_status();
  }
  Status sync_names() override { return ok_status(); }
  void remove(const std::string& name) override { files_.erase(name); }

 private:
  std::map<std::string, std::shared_ptr<std::string>> files_;
};

}  // namespace

Result<std::unique_ptr<Disk>> open_folder(const std::string& folder) {
  Descriptor names(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!names.ok()) return system_error("cannot open the folder " + folder, errno);
  return std::unique_ptr<Disk>(std::make_unique<FolderDisk>(folder, std::move(names), ""));
}

Result<std::unique_ptr<Disk>> open_state_folder(const std::string& folder) {
  if (folder.empty()) return std::unique_ptr<Disk>(std::make_unique<MemoryDisk>());
  const std::string where = folder + kStateFolderKey;
  const std::string remedy =
      "; give this user write access there, or name another folder with --cluster.state_directory";
  if (mkdir(folder.c_str(), 0750) != 0 && errno != EEXIST) {
    Error error = system_error("cannot create " + where, errno);
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
  return std::unique_ptr<Disk>(
      std::make_unique<FolderDisk>(folder, std::move(names), kStateFolderKey));
}

std::string checksum(const std::string& text) {
  char digits[16];
  std::snprintf(digits, sizeof(digits), "%08x",
                wire::crc32c(0, reinterpret_cast<const std::byte*>(text.data()), text.size()));
  return digits;
}

}  // namespace pbox::storage
