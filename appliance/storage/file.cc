#include "appliance/storage/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

namespace pbox::snapshot {

Error File::failed(const char* what) const {
  return system_error(std::string("cannot ") + what + " " + path_, errno);
}

Result<File> File::open(const std::string& path) {
  File file(path, ::open(path.c_str(), O_RDONLY | O_CLOEXEC), false);
  if (file.fd_ < 0) return file.failed("open");
  return file;
}

Result<File> File::replace(const std::string& path) {
  File file(path, -1, true);
  file.fd_ = ::open(file.written_as().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
  if (file.fd_ < 0) return file.failed("make");
  return file;
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      is_new_(std::exchange(other.is_new_, false)) {}

File::~File() {
  if (fd_ >= 0) close(fd_);
  if (fd_ >= 0 && is_new_) unlink(written_as().c_str());
}

Status File::write(const void* data, size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::write(fd_, from, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed("write");
    from += count;
    bytes -= static_cast<size_t>(count);
  }
  return ok_status();
}

Result<bool> File::read(void* data, size_t bytes) {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::read(fd_, to, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed("read");
    if (count == 0) return false;
    to += count;
    bytes -= static_cast<size_t>(count);
  }
  return true;
}

Status File::commit() {
  if (fsync(fd_) != 0) return failed("sync");
  if (rename(written_as().c_str(), path_.c_str()) != 0) return failed("rename");
  is_new_ = false;
  return sync_folder(std::filesystem::path(path_).parent_path());
}

Status sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return system_error("cannot open " + path, errno);
  const bool is_synced = fsync(fd) == 0;
  const int error_number = errno;
  close(fd);
  if (!is_synced) return system_error("cannot sync " + path, error_number);
  return ok_status();
}

}  // namespace pbox::snapshot
