#include "appliance/storage/input_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace pbox::storage {

Result<InputFile> InputFile::open(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) return system_error("cannot open " + path, errno);
  return InputFile(path, std::move(file));
}

Result<bool> InputFile::read(void* data, size_t bytes) {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::read(file_.get(), to, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error("cannot read " + path_, errno);
    if (count == 0) return false;
    to += count;
    bytes -= static_cast<size_t>(count);
  }
  return true;
}

}  // namespace pbox::storage
